"""Which rank writes which chunk: each chunk once, with the bytes spread evenly over the ranks that hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from restoke.checkpoint.arrays import check_tensor
from restoke.checkpoint.container import NAMES
from restoke.checkpoint.formats import ITEMSIZE
from restoke.checkpoint.manifest import Piece, TensorEntry
from restoke.checkpoint.tiling import Box, untiled
from restoke.errors import CheckpointError
from restoke.parts import Chunk

Row = list[Any]  # JSON: [key, offsets, shape, global shape, dtype]
RESERVED = ("values/", "__metadata__")
REMEDY = "report it to the author of the strategy"


def check_key(key: str) -> None:
    """Raises CheckpointError where a tensor cannot be called so."""
    if not key.isprintable() or key.startswith(RESERVED):
        raise CheckpointError.of("key", key, f"a key is printable and does not begin with {' or '.join(RESERVED)}", "rename it")


def row(key: str, chunk: Chunk) -> Row:
    """What the other ranks must know of a chunk.

    Raises:
        CheckpointError: the tensor cannot be stored, or does not lie inside the whole.
    """
    check_tensor(chunk.tensor, key)
    shape, whole = tuple(chunk.tensor.shape), tuple(chunk.shape)
    dtype = NAMES[chunk.tensor.dtype]
    if math.prod(whole) == 0:
        return [key, [0] * len(whole), list(whole), list(whole), dtype]
    if not Box(tuple(chunk.offsets), shape).inside(whole):
        why = f"a chunk of shape {shape} at {tuple(chunk.offsets)} is not inside {whole}"
        raise CheckpointError.of(key, "a chunk", why, REMEDY)
    return [key, list(chunk.offsets), list(shape), list(whole), dtype]


def stored(chunk: Chunk) -> Tensor:
    """The chunk's tensor; of an empty whole, every rank's is the whole."""
    return chunk.tensor if math.prod(chunk.shape) else chunk.tensor.new_empty(chunk.shape)


def assign(rows: Sequence[Sequence[Row]]) -> dict[str, TensorEntry]:
    """What each rank writes, from what each rank holds; every rank computes the same.

    Chunks that one rank alone holds come first, then the largest; each goes to that holder which has the least to write.

    Raises:
        CheckpointError: the ranks disagree on a tensor, or their chunks do not tile it.
    """
    holders: dict[tuple[str, Box], list[int]] = {}
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    for rank, mine in enumerate(rows):
        for key, offsets, shape, whole, dtype in mine:
            kind = kinds.setdefault(key, (tuple(whole), dtype))
            if kind != (tuple(whole), dtype):
                why = f"rank {rank} has shape {tuple(whole)} and dtype {dtype}, another rank {kind}"
                raise CheckpointError.of(key, "a tensor", why, REMEDY)
            if math.prod(shape) or not math.prod(whole):
                holders.setdefault((key, Box(tuple(offsets), tuple(shape))), []).append(rank)
    pieces = _spread(holders, {key: ITEMSIZE[dtype] for key, (_, dtype) in kinds.items()}, len(rows))
    entries = {key: TensorEntry(shape, dtype, tuple(pieces.get(key, ()))) for key, (shape, dtype) in sorted(kinds.items())}
    _check(entries)
    return entries


def _spread(holders: Mapping[tuple[str, Box], list[int]], itemsize: Mapping[str, int], ranks: int) -> dict[str, list[Piece]]:
    load = [0] * ranks
    pieces: dict[str, list[Piece]] = {}

    def order(at: tuple[str, Box]) -> tuple[Any, ...]:
        return len(holders[at]) > 1, -at[1].volume * itemsize[at[0]], at[0], at[1].offsets, at[1].shape

    for at in sorted(holders, key=order):
        rank = min(holders[at], key=lambda holder: (load[holder], holder))
        load[rank] += at[1].volume * itemsize[at[0]]
        pieces.setdefault(at[0], []).append(Piece(rank, at[1]))
    return pieces


def _check(entries: Mapping[str, TensorEntry]) -> None:
    for key, entry in entries.items():
        fault = untiled(entry.shape, [piece.box for piece in entry.pieces])
        if fault is not None:
            raise CheckpointError.of(key, f"{len(entry.pieces)} chunks", fault, REMEDY)
