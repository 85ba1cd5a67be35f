"""Clipping of gradients of which each rank holds parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from restoke.configs import ClipGradConfig
from restoke.spec import Clip


def clip_parts(
    parameters: list[nn.Parameter],
    how: Clip,
    local: Callable[[Tensor], Tensor],
    counts: Callable[[nn.Parameter], bool],
) -> Tensor | None:
    """Clips gradients; returns the norm of the whole before, None where values were clipped. Every rank calls this.

    Args:
        local: the part of a gradient that is here.
        counts: whether this rank is the one of those with the same part that counts it.
    """
    held = [p for p in parameters if p.grad is not None]
    parts = [local(p.grad) for p in held if p.grad is not None]
    if isinstance(how, ClipGradConfig):
        if parts:
            torch._foreach_clamp_min_(parts, -how.clip_value)
            torch._foreach_clamp_max_(parts, how.clip_value)
        return None
    counted = [part for p, part in zip(held, parts, strict=True) if part.numel() and counts(p)]
    device = local(parameters[0].detach()).device if parameters else torch.device("cpu")
    total = _norm_over_ranks(counted, how.norm_type, device)
    if parts:
        torch._foreach_mul_(parts, torch.clamp(how.max_norm / (total + 1e-6), max=1.0))
    return total


def _norm_over_ranks(parts: list[Tensor], p: float, device: torch.device) -> Tensor:
    """Of all ranks' parts together, in one collective whatever the groups."""
    own = nn.utils.get_total_norm(parts, p) if parts else torch.zeros((), device=device)
    largest = math.isinf(p)
    total = own.float() if largest else own.float() ** p
    dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    return total if largest else total ** (1 / p)
