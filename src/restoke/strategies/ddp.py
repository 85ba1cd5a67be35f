"""Every process holds the whole model; gradients are averaged while the backward runs."""

from __future__ import annotations

from restoke.parts import Parts, Request
from restoke.replicas import replicate
from restoke.state import TorchState


def prepare(request: Request) -> Parts:
    """torch's DistributedDataParallel with the settings of DDPConfig."""
    return replicate(
        request,
        lambda model: request.optimizer.build(model.named_parameters()),
        lambda model, optimizer, shared: TorchState(model, optimizer, request.world.rank, shared.layout),
    )
