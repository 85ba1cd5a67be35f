"""How the optimizer runs: as given, fused, by foreach, with a state of 8 bits. It is changed before it is built."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import evolve
from torch.optim import Adam, AdamW, Optimizer

from restoke.errors import SpecError
from restoke.optim import OptimizerSpec
from restoke.parts import Parts
from restoke.passes.in_backward import refuse_together, step_in_backward
from restoke.spec import Spec
from restoke.world import World

EIGHT_BITS: dict[Any, str] = {Adam: "Adam8bit", AdamW: "AdamW8bit"}  # torchao's, by torch's


def run_as_declared(given: OptimizerSpec, spec: Spec, world: World) -> OptimizerSpec:
    """The optimizer that Spec.optimizer asks for. Raises SpecError: its class cannot run so, here or at all."""
    return _CHANGES[spec.optimizer](given, spec, world)


def step_as_declared(parts: Parts, spec: Spec) -> Parts:
    """The parts, whose optimizer steps when Spec.optimizer says."""
    return step_in_backward(parts, spec) if spec.optimizer == "in-backward" else parts


def _as_given(given: OptimizerSpec, spec: Spec, world: World) -> OptimizerSpec:
    return given


def _by_keyword(given: OptimizerSpec, spec: Spec, world: World) -> OptimizerSpec:
    """The keyword of torch's optimizers of the same name as the axis' value."""
    how, name = spec.optimizer, _name(given.cls)
    if how not in inspect.signature(given.cls).parameters:
        raise SpecError.of("optimizer", how, f"{name} does not take {how}=True", "optimizer=given, or one of torch.optim")
    options = (given.kwargs, *given.groups)
    other = "foreach" if how == "fused" else "fused"
    if any(group.get(how, True) is not True or group.get(other) for group in options):
        written = {key: group[key] for group in options for key in (how, other) if key in group}
        raise SpecError.of("optimizer", how, f"the script's own keywords are {written}", "leave them out, or optimizer=given")
    changed = evolve(given, kwargs={**given.kwargs, how: True})
    _try_on(changed, spec, world)
    return changed


def _try_on(changed: OptimizerSpec, spec: Spec, world: World) -> None:
    """torch knows by itself which devices have the kernels: one is built there."""
    probe = torch.zeros(1, device=world.device, requires_grad=True)
    try:
        changed.cls([probe], **changed.kwargs)
    except (RuntimeError, TypeError, ValueError) as error:
        why = f"{_name(changed.cls)} refuses it on {world.device.type} ({error})"
        raise SpecError.of("optimizer", spec.optimizer, why, "optimizer=given") from error


def _in_eight_bits(given: OptimizerSpec, spec: Spec, world: World) -> OptimizerSpec:
    if given.cls not in EIGHT_BITS:
        raise SpecError.of("optimizer", "8bit", f"there is no {_name(given.cls)} of 8 bits", "torch.optim.Adam or AdamW")
    cls: Callable[..., Optimizer] = vars(importlib.import_module("torchao.optim"))[EIGHT_BITS[given.cls]]
    known = inspect.signature(cls).parameters
    foreign = [key for options in (given.kwargs, *given.groups) for key in options if key not in {*known, "params"}]
    if foreign:
        why = f"{EIGHT_BITS[given.cls]} does not take {foreign[0]}"
        raise SpecError.of("optimizer", "8bit", why, f"leave {foreign[0]} out, or optimizer=given")
    return evolve(given, cls=cls)


def _name(cls: Any) -> str:
    return cls.__name__ if isinstance(cls, type) else str(cls)


_CHANGES: Mapping[str, Callable[[OptimizerSpec, Spec, World], OptimizerSpec]] = {
    "given": _as_given,
    "fused": _by_keyword,
    "foreach": _by_keyword,
    "8bit": _in_eight_bits,
    "in-backward": refuse_together,
}
