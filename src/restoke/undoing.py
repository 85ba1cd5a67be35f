"""Takes an optimizer that a script built apart by parameter name, so that a strategy can point the same object at its own."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, final

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.errors import SpecError
from restoke.optim import Built, OptimizerSpec, required
from restoke.optimizer_state import OptimizerState
from restoke.parts import WHOLE, Captured, Chunk, Parts
from restoke.state import COMPILED


def undo(optimizer: Optimizer, model: nn.Module) -> OptimizerSpec:
    """The optimizer as a spec over the model's parameter names. It stays what it is until a strategy builds the spec.

    Raises:
        SpecError: it holds parameters that are none of the model's, or cannot step by itself.
    """
    named = dict(model.named_parameters())
    names = {id(p): name for name, p in named.items()}
    kind = type(optimizer)
    foreign = sum(id(p) not in names for group in optimizer.param_groups for p in group["params"])
    if foreign:
        why = f"{foreign} of its parameters are none of the model's"
        raise SpecError.of("optimizer", kind.__name__, why, "prepare it together with the models whose parameters it has")
    if needed := required(kind.step)[1:]:  # of the class: a scheduler puts its own around the method
        why = f"its step needs {', '.join(needed)}, to run the model again"
        raise SpecError.of("optimizer", kind.__name__, why, "an optimizer whose step() needs nothing")
    groups = tuple(tuple(names[id(p)] for p in group["params"]) for group in optimizer.param_groups)
    kwargs = _keywords(optimizer)
    return OptimizerSpec(kind, kwargs, built=Built(optimizer, kind, kwargs, groups, _taken(optimizer, names)))


def _keywords(optimizer: Optimizer) -> dict[str, Any]:
    """Those that its class is built with, as far as they can be seen: strategies try it out on small tensors."""
    known = inspect.signature(type(optimizer)).parameters
    given = {name: value for name, value in optimizer.defaults.items() if name in known}
    return {name: value for name, value in given.items() if value is not None or known[name].default is not None}


def _taken(optimizer: Optimizer, names: Mapping[int, str]) -> Kept | None:
    if not optimizer.state:
        return None
    captured = Captured()
    plain = {key: name.replace(COMPILED, "") for key, name in names.items()}
    OptimizerState(optimizer, lambda: plain, WHOLE).capture(captured)
    return Kept(captured.chunks, captured.values)


def give_back(spec: OptimizerSpec, parts: Parts) -> None:
    """Place the state of an optimizer that was built before, as the strategy lays it out."""
    if spec.built is not None and spec.built.saved is not None:
        parts.state.restore(spec.built.saved, strict=False)


@final
@frozen(eq=False, repr=False)
class Kept:
    """A captured state to restore from, of whole tensors."""

    chunks: Mapping[str, Chunk]
    values: Mapping[str, Any]

    def keys(self) -> Collection[str]:
        return self.chunks.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        return self.chunks[key].shape

    def dtype(self, key: str) -> torch.dtype:
        return self.chunks[key].tensor.dtype

    def read(self, key: str, offsets: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        tensor = self.chunks[key].tensor
        if offsets is not None and shape is not None:
            tensor = tensor[tuple(slice(begin, begin + size) for begin, size in zip(offsets, shape, strict=True))]
        return tensor.to("cpu", copy=True)
