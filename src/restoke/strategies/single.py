"""One process, one device."""

from __future__ import annotations

from restoke.empty import place
from restoke.parts import Parts, Request
from restoke.state import TorchState
from restoke.steppers import torch_stepper


def prepare(request: Request) -> Parts:
    """Bare PyTorch on the world's device."""
    model = place(request.model, request.world.device)
    optimizer = request.optimizer.build(model.named_parameters())
    stepper = torch_stepper(model, optimizer, request.precision, request.world.device, request.scaler)
    return Parts(model, model, optimizer, stepper, TorchState(model, optimizer), _nothing_to_sync, _nothing_to_reduce)


def _nothing_to_sync(on: bool) -> None:
    """There is one process."""


def _nothing_to_reduce() -> None:
    """There is one process."""
