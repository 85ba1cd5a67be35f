"""The state of a model and its optimizer, in and out, keyed by the user's own parameter names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.errors import CheckpointError, nearest
from restoke.optimizer_state import OptimizerState
from restoke.parts import WHOLE, Captured, Layout, Saved, State

COMPILED = "_orig_mod."  # torch.compile wraps a module and adds this to its names


@final
class TorchState(State):
    """The state of torch's own modules and optimizers, of which a rank holds what `layout` says.

    Of buffers, which may differ between ranks, rank 0's are the state. The optimizer holds its state by parameter, or by what
    `held` names: parts of them that a strategy gave it. Around each use `opened` makes model and optimizer show what they hold.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        rank: int = 0,
        layout: Layout = WHOLE,
        *,
        held: Callable[[], dict[int, str]] | None = None,
        shards: Layout | None = None,
        opened: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._module = module
        self._rank = rank
        self._layout = layout
        self._opened = opened
        self._optimizer = OptimizerState(optimizer, held or self._names, shards or layout)

    def capture(self) -> Captured:
        with self._opened():
            tensors, aliases, extra = self._model_tensors()
            mine = [n for n, t in tensors.items() if self._rank == 0 or isinstance(t, nn.Parameter) or self._layout.cuts(t)]
            captured = Captured({f"model/{name}": self._layout.chunk(tensors[name]) for name in mine})
            captured.values["model"] = {"aliases": aliases, "extra": extra}
            self._optimizer.capture(captured)
        return captured

    def restore(self, saved: Saved, strict: bool) -> list[str]:
        with self._opened():
            left, sources = self._sources(saved, strict)
            has_optimizer = "optimizer" in saved.values
            left += self._optimizer.check(saved, strict) if has_optimizer else []  # before anything is changed
            self._restore_model(saved, sources)
            if has_optimizer:
                self._optimizer.restore(saved)
        return left

    def _model_tensors(self) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
        """Each tensor once, the other names of tied ones, and what modules add with `get_extra_state`."""
        tensors: dict[str, Tensor] = {}
        aliases: dict[str, str] = {}
        extra: dict[str, Any] = {}
        first: dict[int, str] = {}
        for name, value in self._module.state_dict(keep_vars=True).items():
            own = name.replace(COMPILED, "")
            if not isinstance(value, Tensor):
                extra[own] = value
            elif (owner := first.setdefault(id(value), own)) != own:
                aliases[own] = owner
            else:
                tensors[own] = value
        return tensors, aliases, extra

    def _sources(self, saved: Saved, strict: bool) -> tuple[list[str], dict[str, str]]:
        """The names that only one side has, and of the others the key that each is restored from. All of them fit."""
        mine, aliases, _ = self._model_tensors()
        theirs = {key.removeprefix("model/"): key for key in saved.keys() if key.startswith("model/")}  # noqa: SIM118
        renamed = {
            alias: theirs[owner] for alias, owner in saved.values.get("model", {}).get("aliases", {}).items() if owner in theirs
        }
        # a file may have a tied tensor under its other name alone
        renamed |= {owner: theirs[a] for a, owner in aliases.items() if a in theirs and owner not in {*theirs, *renamed}}
        left = _compare(set(mine), set(theirs) | set(renamed), set(aliases), strict)
        sources = {name: key for name, key in (renamed | theirs).items() if name in mine}
        own = self._own(mine)
        for name, key in sources.items():
            if name in own:
                check_fits(name, mine[name], self._layout.place(mine[name]).shape, saved.shape(key), saved.dtype(key))
        return left, sources

    def _own(self, tensors: dict[str, Tensor]) -> set[str]:
        """Of these the parameters and buffers; others a module made for its state."""
        held = {id(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())}
        return {name for name, tensor in tensors.items() if id(tensor) in held}

    def _restore_model(self, saved: Saved, sources: dict[str, str]) -> None:
        mine, _, extra = self._model_tensors()
        own = self._own(mine)
        with torch.no_grad():
            for name, key in sources.items():
                if name in own:
                    self._layout.local(mine[name].detach()).copy_(self._layout.read(saved, key, mine[name]))
        kept = saved.values.get("model", {}).get("extra", {})
        made = {name: saved.read(key) for name, key in sources.items() if name not in own}
        self._hand_over(made | {name: kept[name] for name in extra if name in kept})

    def _hand_over(self, made: dict[str, Any]) -> None:
        """What modules made for their state (`get_extra_state`, or a `state_dict` of their own), only they can take back."""
        if made:
            whole = self._module.state_dict()
            given = {name: made.get(name.replace(COMPILED, ""), value) for name, value in whole.items()}
            self._module.load_state_dict(given, strict=False)

    def _names(self) -> dict[int, str]:
        return {id(p): name.replace(COMPILED, "") for name, p in self._module.named_parameters()}


def check_fits(name: str, mine: Tensor, whole: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises CheckpointError where a saved tensor cannot become this one, or its part of one of shape `whole`.

    Between float dtypes a copy rounds, and may."""
    if whole != shape:
        why = f"the model's has shape {whole}"
        raise CheckpointError.of(f"model/{name}", f"shape {shape}", why, "build the model as it was saved")
    if mine.dtype != dtype and not (mine.is_floating_point() and dtype.is_floating_point):
        raise CheckpointError.of(f"model/{name}", str(dtype), f"the model's is {mine.dtype}", "build the model as it was saved")


def _compare(mine: set[str], theirs: set[str], aliases: set[str], strict: bool) -> list[str]:
    """The names that only one side has. Raises CheckpointError for them where `strict`."""
    missing, unexpected = sorted(mine - theirs), sorted(theirs - mine - aliases)
    left = [f"{name}: the checkpoint has none" for name in missing] + [f"{name}: the model has none" for name in unexpected]
    if strict and left:
        name = (missing or unexpected)[0]
        others = unexpected if missing else sorted(mine)
        hint = f"{nearest(name, others)} in its place, or" if others else "build the model that it was saved from, or"
        counts = f"{len(missing)} tensors of the model are not in it and {len(unexpected)} of its are not in the model"
        why = f"{counts} ({name} first)"
        raise CheckpointError.of("checkpoint", f"{len(theirs)} tensors", why, f"{hint} strict=False")
    return left
