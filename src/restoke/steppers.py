"""The step of PyTorch itself: autocast, scale, unscale, clip, step, clear. Each function is bound once and asks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.configs import ClipGradConfig
from restoke.parts import WHOLE, Layout, Stepper
from restoke.precision import LossScaler, compute_context, matmul_context
from restoke.spec import Clip, Precision

ClipTo = Callable[[list[nn.Parameter], Clip], Tensor | None]


def torch_stepper(
    module: nn.Module,
    optimizer: Optimizer,
    precision: Precision,
    device: torch.device,
    scaler: LossScaler | None,
    *,
    layout: Layout = WHOLE,
    clip_to: ClipTo | None = None,
) -> Stepper:
    """The steps of bare PyTorch, for gradients that are averaged over the ranks already, or for the parts of them here.

    `clip_to` clips where gradients are not whole tensors; torch's own clipping does it where it is None.
    """
    clip_grads, local = clip_to or clip_, layout.local
    parameters = list(module.parameters())  # frozen ones too, since a script may unfreeze them later
    matmul = matmul_context(precision)
    backward = _plain_backward if precision.matmul is None else _backward_under(matmul)

    def rescale(factor: float) -> None:
        grads = [local(p.grad.detach()) for p in parameters if p.grad is not None]
        torch._foreach_mul_(grads, factor)

    def clip(how: Clip) -> Tensor | None:
        return clip_grads(parameters, how)

    def step() -> bool:
        optimizer.step()
        return True

    clear = _clear(optimizer)
    context = matmul if precision.compute is None else compute_context(precision, device)
    plain = Stepper(context, backward, rescale, clip, step, clear)
    return plain if scaler is None else _scaled(plain, optimizer, scaler)


def _clear(optimizer: Optimizer) -> Callable[[], None]:
    """As zero_grad(set_to_none=True), without its entry for the profiler, which costs more than all of the rest."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer):
        return optimizer.zero_grad

    def clear() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return clear


def clip_(parameters: list[nn.Parameter], how: Clip) -> Tensor | None:
    """Clips as torch.nn.utils does; returns the norm before, or None where the values were clipped."""
    if isinstance(how, ClipGradConfig):
        nn.utils.clip_grad_value_(parameters, how.clip_value)
        return None
    return nn.utils.clip_grad_norm_(parameters, how.max_norm, how.norm_type)


def _plain_backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _backward_under(context: Callable[[], Any]) -> Callable[[Tensor], None]:
    def backward(loss: Tensor) -> None:
        with context():
            loss.backward()  # type: ignore[no-untyped-call]

    return backward


def _scaled(plain: Stepper, optimizer: Optimizer, scaler: LossScaler) -> Stepper:
    """The same steps with the loss scaled, and the gradients unscaled before they are clipped."""
    seen: list[Any] = []
    # a fused optimizer looks at the overflow flag by itself, on the device, and is called all the same
    optimizer.register_step_post_hook(lambda *_: seen.append(vars(optimizer).get("found_inf")))

    def backward(loss: Tensor) -> None:
        plain.backward(scaler.scale(loss, optimizer))

    def clip(how: Clip) -> Tensor | None:
        scaler.unscale(optimizer)
        return plain.clip(how)

    def step() -> bool:
        seen.clear()
        scaler.step(optimizer)
        return bool(seen) and (seen[0] is None or not seen[0].item())

    return evolve(plain, backward=backward, clip=clip, step=step, scaler=scaler)
