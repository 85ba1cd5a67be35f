"""Between a whole tensor in rank 0's CPU memory and every rank's part of it, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from restoke.distributed.groups import Group
from restoke.distributed.messages import agree_, is_first, message_device
from restoke.distributed.shards import Shard, cut

PIECE = 1 << 22  # elements


def spread(whole: Tensor | None, part: Tensor, shard: Shard) -> None:
    """The whole that rank 0 has, into the parts of every rank of every group, in place; the others pass None."""
    group = shard.group
    for rank, rows in _meetings(part, shard):
        if group.rank == 0:
            piece = _piece(part, shard, rank, rows)
            if whole is not None:
                piece.copy_(_of_rank(whole, shard, rank)[rows])
            if group.peers is not None:
                dist.broadcast(piece, group.peers.ranks[0], group=group.peers.handle)
            if rank:
                dist.send(piece, group.ranks[rank], group=group.handle)
        else:
            dist.recv(piece := _piece(part, shard, rank, rows), group.ranks[0], group=group.handle)
        if rank == group.rank:
            part[rows] = piece.to(part.device)


def spread_flat(whole: Tensor, group: Group) -> None:
    """Rank 0's values, into the whole tensor of every other rank of every group, in place. Contiguous, in CPU memory."""
    flat, device = whole.view(-1), message_device(group)
    for first in range(0, flat.numel(), PIECE):
        piece = flat[first : first + PIECE]
        heard = agree_(piece.to(device), group)  # on the CPU, the piece itself
        if not is_first(group):
            piece.copy_(heard)


def assemble(part: Tensor, shard: Shard) -> Tensor | None:
    """The parts of rank 0's group, as a whole in rank 0's CPU memory; None elsewhere, where other groups do nothing."""
    group = shard.group
    if group.ranks[0] != 0:
        return None
    whole = torch.empty(shard.whole_shape(part), dtype=part.dtype, device="cpu") if group.rank == 0 else None
    for rank, rows in _meetings(part, shard):
        if whole is None:
            dist.send(part[rows].to(message_device(group)).contiguous(), group.ranks[0], group=group.handle)
        elif rank == 0:
            _of_rank(whole, shard, 0)[rows] = part[rows].to("cpu")
        else:
            dist.recv(piece := _piece(part, shard, rank, rows), group.ranks[rank], group=group.handle)
            _of_rank(whole, shard, rank)[rows] = piece.to("cpu")
    return whole


def _of_rank(whole: Tensor, shard: Shard, rank: int) -> Tensor:
    return whole.narrow(shard.dim, *cut(shard.size, shard.group.size, rank))


def _shape(part: Tensor, shard: Shard, rank: int) -> list[int]:
    shape = list(part.shape)
    shape[shard.dim] = shard.lengths[rank]
    return shape


def _piece(part: Tensor, shard: Shard, rank: int, rows: slice) -> Tensor:
    """Memory for those rows of a rank's part, where messages live."""
    shape = _shape(part, shard, rank)
    shape[0] = min(rows.stop, shape[0]) - rows.start
    return torch.empty(shape, dtype=part.dtype, device=message_device(shard.group))


def _meetings(part: Tensor, shard: Shard) -> Iterator[tuple[int, slice]]:
    """Each rank and the rows of its part, as the first rank of the group goes through them; the others see their own."""
    group = shard.group
    for rank in range(group.size) if group.rank == 0 else (group.rank,):
        shape = _shape(part, shard, rank)
        each = max(1, PIECE // max(1, torch.Size(shape[1:]).numel()))
        for first in range(0, shape[0] if torch.Size(shape).numel() else 0, each):
            yield rank, slice(first, first + each)
