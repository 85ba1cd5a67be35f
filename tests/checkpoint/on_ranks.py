"""What the ranks of a real world do in the tests: functions that the pool can import."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from restoke import checkpoint
from restoke.checkpoint import generations, opening
from restoke.checkpoint.disk import Disk
from restoke.configs.rendezvous import Rendezvous
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk
from restoke.world import World, ranks_here

ROWS, COLUMNS = 7, 4
WHOLE = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)


def joined() -> World:
    return World.join("cpu", ranks_here(), Rendezvous(), many=True)


def rows_of(rank: int, size: int) -> tuple[int, int]:
    """The first row of a rank and how many it has, as DTensor cuts them: the last ranks have fewer, or none."""
    step = -(-ROWS // size)
    start = min(rank * step, ROWS)
    return start, min(start + step, ROWS) - start


def sharded(world: World, mark: float = 0.0) -> Captured:
    """A tensor in rows over the ranks, copies on each, and values of each rank's own."""
    start, count = rows_of(world.rank, world.size)
    chunks = {
        "model/w": Chunk(WHOLE[start : start + count] + mark, (ROWS, COLUMNS), (start, 0)),
        "model/b": Chunk.whole(torch.full((6,), mark)),
        "model/c": Chunk.whole(torch.full((5,), mark)),
        "optimizer/w/step": Chunk.whole(torch.tensor(mark)),
    }
    own = {"state": torch.full((3,), world.rank + mark), "name": f"rank {world.rank}"}
    values = {"extras": {"from": world.rank, "mark": mark}, "first": torch.full((40,), float(world.rank)), "rank/rng": own}
    return Captured(chunks, values)


def save(folder: Path, tag: str, mark: float = 0.0, keep: int | None = None) -> Path:
    world = joined()
    return checkpoint.write(folder, tag, sharded(world, mark), world, meta={"mark": mark}, keep=keep)


def load(folder: Path, tag: str | None = None) -> dict[str, Any]:
    """This rank's own rows of the sharded tensor, all of the others, and the rest."""
    world = joined()
    saved = checkpoint.read(folder, tag, world)
    start, count = rows_of(world.rank, world.size)
    return {
        "tag": saved.tag,
        "notes": saved.notes,
        "rows": saved.read("model/w", (start, 0), (count, COLUMNS)).tolist(),
        "whole": saved.read("model/w").tolist(),
        "columns": saved.read("model/w", (2, 1), (4, 2)).tolist(),
        "b": saved.read("model/b").tolist(),
        "extras": saved.values["extras"],
        "first": saved.values["first"].unique().tolist(),
        "own": [[own["rng"]["name"], own["rng"]["state"].tolist()] for own in saved.rank_values],
    }


def resave(source: Path, target: Path) -> None:
    """Load at this world size, each rank its rows, and save them anew."""
    world = joined()
    saved = checkpoint.read(source, None, world)
    start, count = rows_of(world.rank, world.size)
    chunks = {"model/w": Chunk(saved.read("model/w", (start, 0), (count, COLUMNS)), (ROWS, COLUMNS), (start, 0))}
    chunks |= {key: Chunk.whole(saved.read(key)) for key in saved.keys() if key != "model/w"}  # noqa: SIM118
    values = {**saved.values, "rank/rng": {"state": torch.zeros(3), "name": f"rank {world.rank}"}}
    checkpoint.write(target, "a", Captured(chunks, values), world, meta=saved.meta)


def refusal(call: Any, *args: Any) -> str:
    """What the call is refused with on this rank."""
    try:
        call(*args)
    except CheckpointError as error:
        return str(error)
    return "it was not refused"


def load_refused(folder: Path, tag: str | None = None) -> str:
    return refusal(load, folder, tag)


@frozen
class Full:
    """A disk that is full on these ranks, for one operation on files whose names end so: once, or for good."""

    ranks: list[int]
    operation: str
    name: str
    once: bool = False


def save_without_room(folder: Path, cases: list[Full]) -> list[str]:
    """What each case is refused with; case i in the folder i."""
    world = joined()
    return [_save_without_room(folder / str(i), case, world) for i, case in enumerate(cases)]


def _save_without_room(folder: Path, case: Full, world: World) -> str:
    failed: list[Path] = []

    def before(operation: str, path: Path) -> None:
        here = world.rank in case.ranks and operation == case.operation and str(path).endswith(case.name)
        if here and not (case.once and failed):
            failed.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")

    def call() -> None:
        checkpoint.write(folder, "a", sharded(world, 2.0), world, meta={"mark": 2.0}, disk=Disk(before))

    return refusal(call)


def save_what_one_rank_cannot(folder: Path) -> str:
    world = joined()
    captured = sharded(world)
    if world.rank == 1:
        captured.values["rank/bad"] = {"fn": print}
    return refusal(lambda: checkpoint.write(folder, "a", captured, world, meta={}))


def save_under_two_tags(folder: Path) -> str:
    world = joined()
    return refusal(lambda: checkpoint.write(folder, f"tag-{world.rank}", sharded(world), world, meta={}))


def save_in_two_folders(folder: Path) -> str:
    world = joined()
    return refusal(lambda: checkpoint.write(folder / str(world.rank), "a", sharded(world), world, meta={}))


def load_from_two_folders(folder: Path) -> str:
    world = joined()
    return refusal(lambda: checkpoint.read(folder / str(world.rank), None, world))


def files_verified(folder: Path) -> list[int]:
    """Whose files this rank verified."""
    world, real, mine = joined(), generations.faulty, []

    def counted(path: Path, manifest: Any, rank: int, held: Any) -> str | None:
        mine.append(rank)
        return real(path, manifest, rank, held)

    opening.faulty = counted
    try:
        checkpoint.read(folder, None, world)
    finally:
        opening.faulty = real
    return mine
