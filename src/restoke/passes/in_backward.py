"""The optimizer steps each parameter as soon as its gradient is there, within the backward, and frees the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from attrs import evolve
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.errors import SessionError, SpecError
from restoke.optim import OptimizerSpec
from restoke.parts import Parts
from restoke.spec import Clip, Spec
from restoke.steppers import clip_
from restoke.world import World


def step_in_backward(parts: Parts, spec: Spec) -> Parts:
    """The parts, whose stepper's backward steps too. `Spec.clip` by value is done for each gradient before its step."""
    stepping = _Stepping(parts, spec.clip)
    stepper = evolve(parts.stepper, backward=stepping.backward, clip=stepping.clip, step=stepping.step)
    return evolve(parts, stepper=stepper)


@final
class _Stepping:
    """Gradients of a backward that the session runs are stepped in it. Others, of a loss whose backward was called by hand,
    wait as usual: for the session's backward, to which they are added, or for the step."""

    def __init__(self, parts: Parts, clip: Clip | None) -> None:
        self._optimizer, self._backward, self._rest = parts.optimizer, parts.stepper.backward, parts.stepper.step
        self._clip = clip
        self._parameters = [p for group in parts.optimizer.param_groups for p in group["params"]]
        self._running, self._done = False, False
        for group in parts.optimizer.param_groups:
            for parameter in group["params"]:
                self._follow(parameter, group)

    def _follow(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        if not parameter.requires_grad:
            return  # one that is unfrozen later is stepped at the end, as usual

        def arrived(_: Tensor) -> None:
            if self._running:
                self._clip_those([parameter])
                step_alone(self._optimizer, parameter, group)
                parameter.grad = None

        parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]

    def _clip_those(self, parameters: list[nn.Parameter]) -> None:
        if self._clip is not None and parameters:
            clip_(parameters, self._clip)

    def backward(self, loss: Tensor) -> None:
        if self._done:
            why = "the first one has stepped already, so the gradients of two cannot be added"
            raise SessionError.of("optimizer", "a second backward before step", why, "one backward of the sum of the losses")
        self._running = True
        try:
            self._backward(loss)
        finally:
            self._running = False
        self._done = True

    def clip(self, how: Clip) -> None:
        self._clip_those([p for p in self._parameters if p.grad is not None])

    def step(self) -> bool:
        self._done = False
        if any(p.grad is not None for p in self._parameters):
            return self._rest()
        return True


def step_alone(optimizer: Optimizer, parameter: nn.Parameter, group: dict[str, Any]) -> None:
    """The optimizer's step with this one parameter; looked up each time, since schedulers wrap it."""
    groups, alone = optimizer.param_groups, {**group, "params": [parameter]}
    optimizer.param_groups = [alone]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups
    written = [key for key, value in alone.items() if key != "params" and value is not group.get(key)]
    if written:
        why = f"it keeps {written[0]} for all parameters together, so they cannot be stepped one by one"
        raise SpecError.of("optimizer", "in-backward", why, "optimizer=given")


def refuse_together(given: OptimizerSpec, spec: Spec, world: World) -> OptimizerSpec:
    """The optimizer, tried on two small parameters. Raises SpecError: stepping one by one is not what it does with both."""
    both, alone = (_tried(given, world.device, how) for how in (_step_both, _step_each))
    if not all(torch.equal(a, b) for a, b in zip(both, alone, strict=True)):
        why = "what it does to a parameter depends on others, so they cannot be stepped one by one"
        raise SpecError.of("optimizer", "in-backward", why, "optimizer=given")
    return given


def _tried(given: OptimizerSpec, device: torch.device, step: Callable[[Optimizer, list[nn.Parameter]], None]) -> list[Tensor]:
    values = torch.linspace(-1, 1, 16).reshape(4, 4)
    parameters = [nn.Parameter((values * size).to(device)) for size in (1.0, 3.0)]
    optimizer = evolve(given, groups=(), built=None).build([("one", parameters[0]), ("two", parameters[1])])
    for i in range(3):
        for j, parameter in enumerate(parameters):
            parameter.grad = (values.mT * (1 + i) * 10**j).to(device)
        step(optimizer, parameters)
    return [parameter.detach() for parameter in parameters]


def _step_both(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    optimizer.step()


def _step_each(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        step_alone(optimizer, parameter, optimizer.param_groups[0])
