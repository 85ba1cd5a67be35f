"""Optimizers that mix a parameter's elements, which the ranks that hold its parts cannot step part by part."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from restoke.errors import SpecError
from restoke.optim import OptimizerSpec
from restoke.parts import Request


def refuse_mixing(request: Request, parts: str, otherwise: str) -> None:
    """Raises SpecError where the optimizer does not work element by element: of a part, it makes not what the whole becomes.

    Args:
        parts: who steps a part of what. otherwise: what could be done but to take another optimizer.
    """
    if not _element_wise(request.optimizer, request.world.device):
        kind = getattr(request.optimizer.cls, "__name__", str(request.optimizer.cls))
        why = f"what it does to an element depends on the others, and {parts}"
        raise SpecError.of("optimizer", kind, why, f"an optimizer such as AdamW or SGD, or {otherwise}")


def _element_wise(spec: OptimizerSpec, device: torch.device) -> bool:
    """Whether steps of halves are the halves of a step; tried out on small tensors, since no attribute tells it."""
    for shapes in (((6, 4), (6,)), ((6, 4),)):
        with suppress(Exception):  # an optimizer may want matrices alone; what it really refuses, building it will tell
            return torch.allclose(_stepped(spec, device, shapes, 1), _stepped(spec, device, shapes, 2), rtol=1e-5, atol=1e-7)
    return True


def _stepped(spec: OptimizerSpec, device: torch.device, shapes: tuple[tuple[int, ...], ...], pieces: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    wholes = [torch.randn(shape, generator=generator) for shape in shapes]
    cut = [nn.Parameter(piece.clone().to(device)) for whole in wholes for piece in whole.chunk(pieces)]
    options: dict[str, Any] = dict(spec.kwargs)
    optimizer = spec.cls(cut, **options)
    for _ in range(3):
        grads = [torch.randn(shape, generator=generator) for shape in shapes]
        for p, grad in zip(cut, [piece for whole in grads for piece in whole.chunk(pieces)], strict=True):
            p.grad = grad.clone().to(device)
        optimizer.step()
    return torch.cat([p.detach().flatten().cpu() for p in cut])
