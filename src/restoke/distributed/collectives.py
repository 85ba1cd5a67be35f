"""Collectives over a group that gradients pass through: each one's backward is the other half of a pair.

A tensor that all ranks of a group hold alike counts once, whoever's copy is used: `copy` and `reduce` are each other's
adjoints, and so are `scatter` and `gather` (Shoeybi et al. 2019, the functions f and g). None of them changes its input, and
none can be differentiated twice: torch says so.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from restoke.distributed.groups import Group
from restoke.distributed.shards import cut
from restoke.errors import SpecError


def all_reduce(tensor: Tensor, group: Group, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """Over the group, in place; a group of one sends nothing. Returns the tensor."""
    if group.size > 1:
        dist.all_reduce(tensor, op, group=group.handle)
    return tensor


def all_gather(tensor: Tensor, dim: int, lengths: list[int], group: Group) -> Tensor:
    """Every rank's part, `lengths` long along `dim`, one after the other; a new tensor unless the group has one rank."""
    if group.size == 1:
        return tensor
    first = tensor.movedim(dim, 0)
    longest = max(lengths)
    padded = first.contiguous()
    if first.shape[0] < longest:
        padded = first.new_zeros((longest, *first.shape[1:]))
        padded[: first.shape[0]] = first
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group.handle)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)]).movedim(0, dim)


def exchange_lengths(length: int, device: torch.device, group: Group) -> list[int]:
    """Each rank's number: one small collective, and a wait for it."""
    if group.size == 1:
        return [length]
    parts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(group.size)]
    dist.all_gather(parts, torch.tensor([length], device=device), group=group.handle)
    return [int(part) for part in torch.cat(parts).tolist()]


def copy(tensor: Tensor, group: Group) -> Tensor:
    """The tensor itself, which all ranks hold alike; backward: the sum of all ranks' gradients."""
    return _Copy.apply(tensor, group) if group.size > 1 else tensor  # type: ignore[no-untyped-call]


def reduce(tensor: Tensor, group: Group) -> Tensor:
    """The sum over the ranks, on each; backward: the gradient as it is."""
    return _Reduce.apply(tensor, group) if group.size > 1 else tensor  # type: ignore[no-untyped-call]


def scatter(tensor: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's part of a tensor that all hold alike; backward: every rank's part, whole. Parts differ by one at most."""
    return _Scatter.apply(tensor, dim, group) if group.size > 1 else tensor  # type: ignore[no-untyped-call]


def gather(tensor: Tensor, dim: int, group: Group, size: int | None = None) -> Tensor:
    """Every rank's part, whole, on each; backward: this rank's part of the gradient.

    Args:
        size: of the whole along `dim`, where the parts are those that `scatter` makes; None: the ranks tell their lengths.

    Raises:
        SpecError: this rank's part is not as long as `size` says.
    """
    if group.size == 1:
        return tensor
    if type(tensor) is not Tensor:  # whatever it was known to be a part of, what is made of it is whole
        tensor = tensor.as_subclass(Tensor)
    if size is None:
        lengths = exchange_lengths(tensor.shape[dim], tensor.device, group)
    else:
        lengths = [cut(size, group.size, rank)[1] for rank in range(group.size)]
        if tensor.shape[dim] != lengths[group.rank]:
            why = f"rank {group.rank} of {group.size} holds {lengths[group.rank]} of {size} elements along dimension {dim}"
            raise SpecError.of("tensor", tuple(tensor.shape), why, "the part that scatter makes, or size=None")
    return _Gather.apply(tensor, dim, lengths, group)  # type: ignore[no-any-return, no-untyped-call]


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad.clone(memory_format=torch.contiguous_format), ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        return all_reduce(tensor.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group, ctx.size = dim, group, tensor.shape[dim]
        start, length = cut(ctx.size, group.size, group.rank)
        return tensor.narrow(dim, start, length).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        lengths = [cut(ctx.size, ctx.group.size, rank)[1] for rank in range(ctx.group.size)]
        return all_gather(grad, ctx.dim, lengths, ctx.group), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, lengths: list[int], group: Group) -> Tensor:
        ctx.dim, ctx.start, ctx.length = dim, sum(lengths[: group.rank]), lengths[group.rank]
        return all_gather(tensor, dim, lengths, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad.narrow(ctx.dim, ctx.start, ctx.length).contiguous(), None, None, None
