"""The loss of each row from the parts of the logits that the ranks hold: two collectives forward, none backward.

Nothing is saved but the logits themselves and a few numbers for each row: probabilities are computed anew in the backward,
which costs an exponential and saves a buffer of the logits' size. No logarithm of a probability is ever taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from restoke.distributed.collectives import all_reduce
from restoke.distributed.groups import Group
from restoke.errors import DataError
from restoke.nn.functional.class_targets import ALL, Aims, alike, apart

PIECE = {"cpu": 1 << 17}  # elements that are worked on at a time: on a CPU they should stay in its cache
PIECE_ELSEWHERE = 1 << 24
SUMS = 7  # for each row: exponentials, what is aimed at, masses, divisors, three checks


def row_losses(part: Tensor, aims: Aims, group: Group, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each row's loss, and what it adds to the divisor of the mean; shape (rows), alike on every rank.

    Args:
        part: this rank's logits: shape (batch, classes of this rank) or (batch, classes of this rank, positions).

    Raises:
        DataError: on every rank, where a target is no class, or the ranks' targets differ.
    """
    with exactly(part.device):
        return _RowLosses.apply(part, aims, group, dtype)  # type: ignore[no-any-return, no-untyped-call]


def exactly(device: torch.device) -> AbstractContextManager[Any]:
    """Without autocast."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def refuse_together(rows: int, dtype: torch.dtype, device: torch.device, group: Group) -> None:
    """Takes part in the others' collectives, so that they hear of this rank's refusal and do not wait for it."""
    all_reduce(torch.full((rows,), torch.finfo(dtype).min, dtype=dtype, device=device), group, dist.ReduceOp.MAX)
    all_reduce(torch.full((SUMS, rows), torch.nan, dtype=dtype, device=device), group)


def combine(sums: Tensor, kept: Tensor, group: Group) -> Tensor:
    """Each row's loss, once `sums` are relative to the highest score of all ranks; adds them up over the group, in place."""
    all_reduce(sums, group)
    exponentials, aim, mass = sums[:3]
    _check(sums[4:], group)
    return torch.where(kept, mass * exponentials.log() - aim, 0)


def _check(checks: Tensor, group: Group) -> None:
    """Raises DataError where a row's target is no class, or not alike on all ranks. On a GPU the kernel's assertion does."""
    if type(checks) is not Tensor or checks.is_meta:  # no values
        return
    right = alike(checks, group.size)
    if checks.device.type != "cpu":
        torch._assert_async(right.all(), "targets must be classes, and alike on every rank of the group")
        return
    if right.all():
        return
    row = int((~right).nonzero()[0])
    if checks[0, row].isnan():
        raise DataError.of("target", "a refusal", "another rank of the group refused its own", "what its error says")
    why = "it is no class, or the ranks hold unlike targets"
    instead = "classes of the whole, or ignore_index; of all rows, alike on every rank: gather_rows(target, group)"
    raise DataError.of("target", f"that of row {row}", why, instead)


def highest_scores(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Of each row; a finite number also where there is none, so that differences stay numbers."""
    lowest = torch.finfo(dtype).min
    if not part.shape[1]:
        return torch.full((part.shape[0] * part.shape[2:].numel(),), lowest, dtype=dtype, device=part.device)
    return part.amax(1).reshape(-1).to(dtype).clamp_(min=lowest)


def blocks(part: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a part, some at a time: which, and a view of shape (rows, classes)."""
    width = part.shape[1]
    if not width:
        return
    if part.ndim == 3:
        positions = part.shape[2]
        yield from ((slice(i * positions, (i + 1) * positions), each.t()) for i, each in enumerate(part))
        return
    each = max(1, PIECE.get(part.device.type, PIECE_ELSEWHERE) // width)
    for first in range(0, part.shape[0], each):
        rows = slice(first, first + each)
        yield rows, part[rows]


class _RowLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, aims: Aims, group: Group, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        highest = all_reduce(highest_scores(part, dtype), group, dist.ReduceOp.MAX)
        sums = highest.new_zeros((SUMS, len(highest)))
        for rows, scores in blocks(part):
            shifted = scores - highest[rows].unsqueeze(1)
            sums[2, rows], sums[1, rows] = aims.measure(rows, ALL, shifted)
            sums[0, rows] = shifted.exp_().sum(1)
        sums[3], sums[4:] = aims.divisors(), aims.checks()
        loss = combine(sums, aims.kept, group)
        ctx.aims, tensors = apart(aims)
        ctx.save_for_backward(part, highest, sums[2] / sums[0], *tensors)
        divisors = sums[3].clone()
        ctx.mark_non_differentiable(divisors)
        return loss, divisors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        part, highest, scale, *tensors = ctx.saved_tensors
        aims = ctx.aims(tensors)
        grad = torch.where(aims.kept, grad, 0)
        scale = grad * scale
        out = torch.empty_like(part, memory_format=torch.contiguous_format)
        own = out.dtype == highest.dtype
        for (rows, scores), (_, there) in zip(blocks(part), blocks(out), strict=True):
            block = torch.sub(scores, highest[rows].unsqueeze(1), out=there if own else None)
            block.exp_().mul_(scale[rows].unsqueeze(1))
            aims.take_(rows, ALL, block, grad[rows])
            if not own:
                there.copy_(block)
        return out, None, None, None
