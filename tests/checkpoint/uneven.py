"""States that are cut unevenly, as functions that ranks run."""

from __future__ import annotations

from pathlib import Path

import torch

from restoke import checkpoint
from restoke.checkpoint import holding
from restoke.checkpoint.background import Saver
from restoke.parts import Captured, Chunk
from tests.checkpoint.on_ranks import joined

ROWS, COLUMNS = 12, 10
WHOLE = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
FLAT = torch.arange(37, dtype=torch.bfloat16)


def save(folder: Path, cuts: list[int]) -> None:
    """Rank i has the rows from cuts[i] to cuts[i + 1]; `waited`, and `beside` training."""
    world = joined()
    start, end = cuts[world.rank : world.rank + 2]
    flat = [3 * cut for cut in cuts[:-1]] + [len(FLAT)]
    first, last = flat[world.rank : world.rank + 2]
    chunks = {
        "rows": Chunk(WHOLE[start:end], (ROWS, COLUMNS), (start, 0)),
        "flat": Chunk(FLAT[first:last], (len(FLAT),), (first,)),
        "columns": Chunk(WHOLE.t()[:, start:end], (COLUMNS, ROWS), (0, start)),
        "none": Chunk(torch.empty(0, 3), (0, 3), (0, 0)),
    }
    if world.rank == 1:
        chunks["alone"] = Chunk.whole(WHOLE)
    write(folder, chunks)


def save_on_a_grid(folder: Path) -> None:
    """Two by two ranks, cut at row 1 and column 7."""
    world = joined()
    (top, bottom), (left, right) = [(0, 1), (1, ROWS)][world.rank // 2], [(0, 7), (7, COLUMNS)][world.rank % 2]
    chunk = Chunk(WHOLE[top:bottom, left:right], (ROWS, COLUMNS), (top, left))
    write(folder, {"rows": chunk})


def write(folder: Path, chunks: dict[str, Chunk]) -> None:
    world, captured = joined(), Captured(chunks, {})
    checkpoint.write(folder, "waited", captured, world, meta={})
    saver = Saver(world)
    saver.start(folder, "beside", captured, meta={})
    saver.finish()


def load(folder: Path, cut: int) -> bool:
    """Whether this rank's boxes are right, for boxes across those that were saved, kept or read, and the whole."""
    world, kept = joined(), holding.LEAST
    expected = {"rows": WHOLE, "flat": FLAT, "columns": WHOLE.t(), "none": torch.empty(0, 3), "alone": WHOLE}
    right = []
    try:
        for tag in ("waited", "beside"):
            for holding.LEAST in (1, kept):
                saved = checkpoint.read(folder, tag, world)
                for key in saved.keys():  # noqa: SIM118
                    whole = expected[key]
                    count = len(whole) // world.size + cut % 2
                    start = min(world.rank * count, len(whole))
                    end = min(start + count, len(whole))
                    box = (start, *(0,) * (whole.ndim - 1)), (end - start, *whole.shape[1:])
                    right.append(saved.read(key, *box).equal(whole[start:end]))
                    right.append(saved.read(key).equal(whole))
    finally:
        holding.LEAST = kept
    return all(right) and len(right) >= 8
