"""Between a whole tensor in one rank's CPU memory and every rank's part of it, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from restoke.distributed.messages import message_device
from restoke.distributed.shards import Shard, cut

PIECE = 1 << 22  # elements


def spread(whole: Tensor | None, part: Tensor, shard: Shard) -> None:
    """The whole that the group's first rank has, into every rank's part, in place; the others pass None."""
    group = shard.group
    if group.rank == 0:
        assert whole is not None
        part.copy_(shard.of(whole))
    for rank, rows in _meetings(part, shard):
        if whole is not None:
            piece = _of_rank(whole, shard, rank)[rows].to(message_device(group)).contiguous()
            dist.send(piece, group.ranks[rank], group=group.handle)
        else:
            piece = torch.empty_like(part[rows], device=message_device(group), memory_format=torch.contiguous_format)
            dist.recv(piece, group.ranks[0], group=group.handle)
            part[rows] = piece.to(part.device)


def assemble(part: Tensor, shard: Shard) -> Tensor | None:
    """Every rank's part, as a whole in the CPU memory of the group's first rank; None on the others."""
    group = shard.group
    whole = torch.empty(shard.whole_shape(part), dtype=part.dtype, device="cpu") if group.rank == 0 else None
    if whole is not None:
        shard.of(whole).copy_(part)
    for rank, rows in _meetings(part, shard):
        if whole is not None:
            there = _of_rank(whole, shard, rank)[rows]
            piece = torch.empty_like(there, device=message_device(group), memory_format=torch.contiguous_format)
            dist.recv(piece, group.ranks[rank], group=group.handle)
            there.copy_(piece)
        else:
            dist.send(part[rows].to(message_device(group)).contiguous(), group.ranks[0], group=group.handle)
    return whole


def _of_rank(whole: Tensor, shard: Shard, rank: int) -> Tensor:
    return whole.narrow(shard.dim, *cut(shard.size, shard.group.size, rank))


def _meetings(part: Tensor, shard: Shard) -> Iterator[tuple[int, slice]]:
    """Each other rank and the rows of its part, in the order in which the first rank meets them; a rank sees its own."""
    group = shard.group
    for rank in range(1, group.size) if group.rank == 0 else (group.rank,):
        shape = list(part.shape)
        shape[shard.dim] = shard.lengths[rank]
        each = max(1, PIECE // max(1, torch.Size(shape[1:]).numel()))
        for first in range(0, shape[0] if torch.Size(shape).numel() else 0, each):
            yield rank, slice(first, first + each)
