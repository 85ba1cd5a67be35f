"""Rank 0 alone reads, and sends each rank its own part of every step, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from restoke import comm
from restoke.data.feed import look_ahead
from restoke.data.packets import pack, unpack
from restoke.data.rounds import Tally
from restoke.errors import DataError
from restoke.world import World

Steps = Iterator[
    tuple[list[Any], Tally, int]
]  # all ranks' parts, their count, and which worker's share they are of (or NOBODYS)
Sent = tuple[Any, bool, Tally, int]  # this rank's part, whether it is the last, and the same
NOBODYS = -1


class Word(IntEnum):
    """What rank 0 announces."""

    MORE = 0
    LAST = 1
    NONE = 2
    FAILED = 3


def dispatch(steps: Steps | None, world: World) -> Iterator[Sent]:
    """This rank's part of every step. `steps` are given on rank 0 alone.

    Raises:
        DataError: on the other ranks, where rank 0 could not read on.
    """
    return _receive(world) if steps is None else _send(steps, world)


def _send(steps: Steps, world: World) -> Iterator[Sent]:
    pending: list[Any] = []
    given = False
    try:
        for (parts, tally, worker), last in look_ahead(steps):
            _wait(pending)
            packets = {rank: pack(parts[rank // world.tensor]) for rank in range(1, world.size)}
            _announce(Word.LAST if last else Word.MORE, world, worker, tally, [packet.numel() for packet in packets.values()])
            device = comm.device_of(world)
            sent = [packet.to(device) for packet in packets.values()]
            pending = [(dist.isend(packet, rank), packet) for rank, packet in zip(packets, sent, strict=True)]
            given = given or last
            yield parts[0], last, tally, worker
    except Exception as error:
        _wait(pending)
        _announce(Word.FAILED, world)
        comm.broadcast_json(f"{type(error).__name__}: {error}", world)
        raise
    finally:
        _wait(pending)
    if not given:
        _announce(Word.NONE, world)


def _receive(world: World) -> Iterator[Sent]:
    while True:
        word, worker, tally, lengths = _hear(world)
        if word is Word.NONE:
            return
        if word is Word.FAILED:
            why = f"rank 0 could not read the next batch ({comm.broadcast_json(None, world)})"
            raise DataError.of("dispatch_batches", True, why, "see the error of rank 0")
        packet = torch.empty(lengths[world.rank - 1], dtype=torch.uint8, device=comm.device_of(world))
        dist.recv(packet, 0)
        yield unpack(packet.cpu()), word is Word.LAST, tally, worker
        if word is Word.LAST:
            return


def _announce(
    word: Word, world: World, worker: int = NOBODYS, tally: Tally | None = None, lengths: list[int] | None = None
) -> None:
    sizes, real = ((0,) * world.data_size,) * 2 if tally is None else (tally.sizes, tally.real)
    values = [word, worker, *sizes, *real, *(lengths or [0] * (world.size - 1))]
    dist.broadcast(torch.tensor(values, device=comm.device_of(world)), 0)


def _hear(world: World) -> tuple[Word, int, Tally, list[int]]:
    ranks = world.data_size
    heard: Tensor = torch.zeros(1 + 2 * ranks + world.size, dtype=torch.int64, device=comm.device_of(world))
    dist.broadcast(heard, 0)
    word, worker, *values = heard.tolist()
    return Word(word), worker, Tally(tuple(values[:ranks]), tuple(values[ranks : 2 * ranks])), values[2 * ranks :]


def _wait(pending: list[Any]) -> None:
    for work, _ in pending:
        work.wait()
    pending.clear()
