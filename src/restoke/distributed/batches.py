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
from torch.autograd.function import once_differentiable

from restoke.distributed.collectives import all_gather, exchange_lengths
from restoke.distributed.groups import Group
from restoke.errors import SpecError


def gather_rows(tensor: Tensor, group: Group, lengths: list[int] | None = None) -> Tensor:
    """All ranks' rows, in rank order, on each. Ranks may have different numbers of rows.

    Args:
        tensor: shape (rows of this rank, ...).
        lengths: each rank's number of rows, where it is known; None: the ranks tell each other, which is a small collective
            that is waited for.

    Raises:
        SpecError: `lengths` says otherwise of this rank.
    """
    if group.size == 1:
        return tensor
    if lengths is None:
        lengths = exchange_lengths(tensor.shape[0], tensor.device, group)
    _check(len(lengths) == group.size and lengths[group.rank] == tensor.shape[0], tensor, lengths, "this rank's number of rows")
    return _GatherRows.apply(tensor, lengths, group)  # type: ignore[no-any-return, no-untyped-call]


def own_rows(tensor: Tensor, group: Group, lengths: list[int]) -> Tensor:
    """This rank's rows of what all hold alike, such as the losses of all rows. Backward: an all-gather.

    Args:
        tensor: shape (sum of lengths, ...).

    Raises:
        SpecError: it has another number of rows.
    """
    if group.size == 1:
        return tensor
    _check(len(lengths) == group.size and sum(lengths) == tensor.shape[0], tensor, lengths, "as many rows as all ranks have")
    return _OwnRows.apply(tensor, lengths, group)  # type: ignore[no-any-return, no-untyped-call]


def _check(fits: bool, tensor: Tensor, lengths: list[int], instead: str) -> None:
    if not fits:
        raise SpecError.of("lengths", lengths, f"the tensor has the shape {tuple(tensor.shape)}", instead)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, lengths: list[int], group: Group) -> Tensor:
        ctx.start, ctx.length, ctx.size = sum(lengths[: group.rank]), lengths[group.rank], group.size
        return all_gather(tensor, 0, lengths, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(0, ctx.start, ctx.length) * ctx.size, None, None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, lengths: list[int], group: Group) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return tensor.narrow(0, sum(lengths[: group.rank]), lengths[group.rank]).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(grad, 0, ctx.lengths, ctx.group) / ctx.group.size, None, None
