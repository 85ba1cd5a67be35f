"""Something is killed before each of its file operations, on each of its ranks, and then looked at."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from attrs import frozen

from tests.faults.drives import Drive, crashes, replayed
from tests.faults.forks import End, die, in_forks, in_ranks, in_worlds
from tests.faults.operations import Before, Operation, interposed

AT_ONCE = 3  # worlds that are killed beside each other


@final
@frozen
class Trial:
    """Its functions are importable, or partials of such: they run in forks of the warm process.

    `prepare(folder)` makes the state to start from; `act(folder, world)` is what is killed, on every rank; `look(folder)`
    says what is there afterwards, and may raise.
    """

    prepare: Callable[[Path], Any]
    act: Callable[[Path, Any], Any]
    look: Callable[[Path], Any]
    ranks: int = 1


@final
@frozen
class Point:
    """`rank` dies before its operation `number`; where it has fewer, it lives."""

    rank: int
    number: int


@final
@frozen
class Outcome:
    """`operation` is the one that was not done; None where there was none to die before."""

    point: Point
    operation: Operation | None
    ends: tuple[End, ...]
    seen: Any

    def __str__(self) -> str:
        return f"rank {self.point.rank}, {self.point.number}: before {self.operation}: {self.seen}"


@final
@frozen
class Recording:
    """An undisturbed run from `start`: each rank's operations, and the folder it left."""

    start: Path
    folder: Path
    done: tuple[tuple[Operation, ...], ...]

    @property
    def points(self) -> list[Point]:
        """Every one, and for each rank one more, at which it lives."""
        return [Point(rank, number) for rank, done in enumerate(self.done) for number in range(len(done) + 1)]

    def at(self, point: Point) -> Operation | None:
        done = self.done[point.rank]
        return done[point.number] if point.number < len(done) else None

    @property
    def together(self) -> list[Operation]:
        """The operations of all ranks in the order in which they were done."""
        return sorted(itertools.chain(*self.done), key=lambda it: it.at)


def recorded(trial: Trial, folder: Path) -> Recording:
    """Run it once. Raises AssertionError: it failed, or changed files behind the file layer's back."""
    start, run = folder / "start", folder / "run"
    start.mkdir()
    (end,) = in_forks([partial(trial.prepare, start)])
    assert end.code == 0, end.error
    shutil.copytree(start, run)
    ends = in_ranks(trial.ranks, partial(_record, trial, run))
    assert all(end.code == 0 for end in ends), [end.error for end in ends]
    recording = Recording(start, run, tuple(tuple(end.value) for end in ends))
    seen = replayed(start, recording.together)
    assert seen.digest() == Drive.of(run).digest(), "files changed behind the file layer's back"
    return recording


def killed(trial: Trial, folder: Path, victim: int | None = None) -> list[Outcome]:
    """At every point there is, or those of one rank. `folder` is an empty one."""
    recording = recorded(trial, folder)
    points = [point for point in recording.points if victim in (None, point.rank)]
    found = list(_killed(trial, recording, folder / "killed", points))
    seen = looked(trial, [folder / "killed" / str(i) for i in range(len(found))])
    return [Outcome(point, operation, ends, label) for (point, operation, ends), label in zip(found, seen, strict=True)]


def unplugged(trial: Trial, folder: Path, drop: int | None = None) -> list[tuple[int, Any]]:
    """Power fails after each number of operations: what is then seen of each thing that may be on the drive.

    Args:
        drop: the number of an operation that is left out, as if the code lacked it.
    """
    recording = recorded(trial, folder)
    done = [operation for number, operation in enumerate(recording.together) if number != drop]
    left = list(crashes(recording.start, done))
    paths = [image.write_to(folder / "left" / str(i)) for i, (_, image) in enumerate(left)]
    return list(zip([count for count, _ in left], looked(trial, paths), strict=True))


def looked(trial: Trial, folders: Sequence[Path]) -> list[Any]:
    """What `look` says of each, or the exception's name and text."""
    share = -(-len(folders) // 2) or 1
    ends = in_forks([partial(_look, trial, folders[i : i + share]) for i in range(0, len(folders), share)], patience=60)
    assert all(end.code == 0 for end in ends), [end.error or end for end in ends]
    return list(itertools.chain(*(end.value for end in ends)))


def dying(number: int) -> Before:
    """SIGKILL before the operation of this number, counted from 0."""
    count = itertools.count()

    def before(operation: Operation) -> None:
        if next(count) == number:
            die()

    return before


def _record(trial: Trial, folder: Path, world: Any) -> list[Operation]:
    with interposed(folder) as done:
        trial.act(folder, world)
    return done


def _killed(
    trial: Trial, recording: Recording, folder: Path, points: Sequence[Point]
) -> Iterator[tuple[Point, Operation | None, tuple[End, ...]]]:
    for first in range(0, len(points), AT_ONCE):
        some = points[first : first + AT_ONCE]
        paths = [folder / str(first + i) for i in range(len(some))]
        for path in paths:
            shutil.copytree(recording.start, path)
        jobs = [partial(_act_and_die, trial, path, point) for path, point in zip(paths, some, strict=True)]
        for point, ends in zip(some, in_worlds(trial.ranks, jobs), strict=True):
            yield point, recording.at(point), tuple(ends)


def _act_and_die(trial: Trial, folder: Path, point: Point, world: Any) -> None:
    with interposed(folder, dying(point.number if world.rank == point.rank else -1)):
        trial.act(folder, world)


def _look(trial: Trial, folders: Sequence[Path]) -> list[Any]:
    return [_seen(trial, folder) for folder in folders]


def _seen(trial: Trial, folder: Path) -> Any:
    try:
        return trial.look(folder)
    except BaseException as error:  # the exception of torch's checkpoint is none of Exception
        return f"{type(error).__name__}: {error}"
