"""Between data parallelism and a head that its ranks share: all ranks' rows into the head, each rank's own out of it.

Data parallelism averages gradients over its ranks: what is trained is the average of the losses that the ranks hand to
`backward`. Both functions keep to that, so that a backbone's and a head's gradients are of one scale:

- the ranks of a group hand in one loss over all rows, alike on each: its gradient reaches the rows' owner once, times the
  group's size, which the average takes back;
- each rank hands in the loss of its own rows (`own_rows`): the head's gradient is the sum over ranks divided by the size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from restoke.distributed.collectives import all_gather, exchange_lengths
from restoke.distributed.groups import Group


def gather_rows(tensor: Tensor, group: Group, lengths: list[int] | None = None) -> Tensor:
    """All ranks' rows, in rank order, on each. Ranks may have different numbers of rows.

    Args:
        tensor: shape (rows of this rank, ...).
        lengths: each rank's number of rows, where it is known; None: the ranks tell each other, which is a small collective
            that is waited for.
    """
    if group.size == 1:
        return tensor
    lengths = lengths or exchange_lengths(tensor.shape[0], tensor.device, group)
    return _GatherRows.apply(tensor, lengths, group)  # type: ignore[no-any-return, no-untyped-call]


def own_rows(tensor: Tensor, group: Group, lengths: list[int]) -> Tensor:
    """This rank's rows of what all hold alike, such as the losses of all rows. Backward: an all-gather.

    Args:
        tensor: shape (sum of lengths, ...).
    """
    if group.size == 1:
        return tensor
    return _OwnRows.apply(tensor, lengths, group)  # type: ignore[no-any-return, no-untyped-call]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, lengths: list[int], group: Group) -> Tensor:
        ctx.start, ctx.length, ctx.size = sum(lengths[: group.rank]), lengths[group.rank], group.size
        return all_gather(tensor, 0, lengths, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(0, ctx.start, ctx.length) * ctx.size, None, None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, lengths: list[int], group: Group) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return tensor.narrow(0, sum(lengths[: group.rank]), lengths[group.rank]).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(grad, 0, ctx.lengths, ctx.group) / ctx.group.size, None, None
