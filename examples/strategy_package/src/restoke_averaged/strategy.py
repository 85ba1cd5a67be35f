"""Every process holds the whole model, and gradients are averaged by hand: one message at the end of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn

from restoke.parts import Parts, Request, Stepper
from restoke.precision import dtype
from restoke.spec import Clip
from restoke.state import TorchState
from restoke.steppers import torch_stepper
from restoke_averaged import AveragedConfig


def prepare(request: Request) -> Parts:
    """Bare PyTorch, begun alike on all ranks, whose gradients are averaged before the first thing that needs them."""
    model, world = request.model.to(request.world.device), request.world
    _send_from_first_rank([*model.parameters(), *model.buffers()])
    optimizer = request.optimizer.build(model.named_parameters())
    reduce = request.spec.setting(AveragedConfig).reduce or request.precision.reduce
    trained = [p for p in model.parameters() if p.requires_grad]

    def average() -> None:
        _average(trained, world.size, dtype(reduce) if reduce else None)

    stepper = torch_stepper(model, optimizer, request.precision, world.device, request.scaler)
    return Parts(
        model=model,
        module=model,
        optimizer=optimizer,
        stepper=_averaging(stepper, average, clips=request.spec.clip is not None),
        state=TorchState(model, optimizer, world.rank),
        set_grad_sync=lambda on: None,  # gradients stay local until a window ends, whenever that is
        reduce_grads=lambda: None,  # the step does it
        local_buffers=True,  # statistics of batch norm are each rank's own
    )


def _send_from_first_rank(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        dist.broadcast(tensor.detach(), src=0)


def _averaging(stepper: Stepper, average: Callable[[], None], clips: bool) -> Stepper:
    """Averages once a window: before clipping where there is clipping, else before the step."""

    def clip(how: Clip) -> Tensor | None:
        average()
        return stepper.clip(how)

    def step() -> bool:
        average()
        return stepper.step()

    return evolve(stepper, clip=clip) if clips else evolve(stepper, step=step)


def _average(parameters: list[nn.Parameter], ranks: int, reduce: torch.dtype | None) -> None:
    """The mean over ranks, in one message. It begins with a mark for each parameter that has a gradient on this rank: one that
    has none on any rank keeps none."""
    if reduce is None:
        reduce = max((p.dtype for p in parameters), key=lambda kind: torch.finfo(kind).bits)
    marks = torch.tensor([p.grad is not None for p in parameters], device=parameters[0].device)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([marks.to(reduce), *(grad.flatten().to(reduce) for grad in grads)])
    dist.all_reduce(flat)
    flat /= ranks
    means = torch.split(flat[len(marks) :], [p.numel() for p in parameters])
    for p, some, mean in zip(parameters, (flat[: len(marks)] > 0).tolist(), means, strict=True):
        p.grad = mean.view_as(p).to(p.dtype) if some else None
