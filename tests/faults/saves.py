"""Saves of restoke to be disturbed: everything in them bears the mark of its generation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import final

import torch
from attrs import frozen

from restoke import checkpoint
from restoke.parts import Captured, Chunk
from restoke.world import World
from tests.faults.forks import alone
from tests.faults.trials import Trial

OLD, NEW, NEXT = 1.0, 2.0, 3.0


def filled(mark: float, world: World, rows: int = 2) -> Captured:
    """A tensor cut over the ranks, so many rows of 8 bytes on each, copies on each, an empty one, and values."""
    chunks = {
        "model/w": Chunk(torch.full((rows, 2), mark), (rows * world.size, 2), (rows * world.rank, 0)),
        "model/b": Chunk.whole(torch.full((3,), mark, dtype=torch.bfloat16)),
        "optimizer/w/step": Chunk.whole(torch.tensor(mark)),
        "model/empty": Chunk.whole(torch.empty(0, 4)),
    }
    return Captured(chunks, {"extras": {"mark": mark, "seen": torch.full((2,), mark)}, "rank/rng": {"state": mark}})


def save(folder: Path, world: World, tag: str, mark: float, keep: int | None = None, rows: int = 2) -> None:
    checkpoint.write(folder, tag, filled(mark, world, rows), world, meta={"mark": mark}, keep=keep)


def save_alone(folder: Path, tag: str = "old", mark: float = OLD, keep: int | None = None) -> None:
    save(folder, alone(), tag, mark, keep)


def marks(folder: Path, tag: str | None = None) -> set[float]:
    """The marks that are in what loads: one, unless generations are mixed."""
    return marks_of(checkpoint.read(folder, tag, alone()))


def marks_of(saved: checkpoint.Opened) -> set[float]:
    found = {saved.meta["mark"], saved.values["extras"]["mark"], *(own["rng"]["state"] for own in saved.rank_values)}
    found |= set(saved.values["extras"]["seen"].tolist())
    for key in saved.keys():  # noqa: SIM118
        found |= set(saved.read(key).float().flatten().tolist())
    return found


@final
@frozen
class Seen:
    """`newest` and `tags` are the marks of what loads; `after` and `left` what is there once another save has kept one."""

    newest: set[float]
    notes: list[str]
    tags: dict[str, set[float]]
    after: set[float]
    left: set[str]


def look(folder: Path) -> Seen:
    saved = checkpoint.read(folder, None, alone())
    tags = {entry.tag: marks(folder, entry.tag) for entry in checkpoint.listing(folder)}
    newest = marks_of(saved)
    save_alone(folder, "next", NEXT, keep=1)
    return Seen(newest, saved.notes, tags, marks(folder), {path.name for path in folder.iterdir()} - {".lock"})


def replacing(tag: str, keep: int | None, ranks: int) -> Trial:
    """The generation `old` is there; NEW is saved under the tag."""
    return Trial(save_alone, partial(saved, tag=tag, keep=keep), look, ranks)


def saved(folder: Path, world: World, tag: str, keep: int | None) -> None:
    save(folder, world, tag, NEW, keep)


def nothing(folder: Path) -> None:
    pass
