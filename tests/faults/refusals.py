"""Saves whose file operations are refused, as a full disk does it: once, or from then on."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from attrs import frozen

from tests.faults.forks import End, in_ranks
from tests.faults.operations import Before, Operation, interposed, nothing
from tests.faults.trials import Recording, Trial, looked, recorded

FREES = ("remove",)  # works on a full disk too


@final
@frozen
class Refused:
    """On `rank`, the operation `number`; or with `for_good` it and all that follow, but for those that free space."""

    rank: int
    number: int
    for_good: bool

    def before(self) -> Before:
        count = itertools.count()

        def before(operation: Operation) -> None:
            number = next(count)
            here = number >= self.number and operation.kind not in FREES if self.for_good else number == self.number
            if here:
                raise full(operation)

        return before


@final
@frozen
class Told:
    """Of one case: what each rank was told, what is left before the next save, and what `look` says."""

    case: Refused
    operation: Operation
    said: tuple[str, ...]
    left: tuple[str, ...]
    seen: Any


def full(operation: Operation) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.path)


def refused(trial: Trial, folder: Path) -> list[Told]:
    """Each operation of each rank is refused, one at a time; the ranks stay the same, since nobody dies."""
    recording = recorded(trial, folder)
    cases = [
        Refused(rank, at, ever) for rank, done in enumerate(recording.done) for at in range(len(done)) for ever in (False, True)
    ]
    return told(trial, recording, folder, cases)


def told(trial: Trial, recording: Recording, folder: Path, cases: Sequence[Refused]) -> list[Told]:
    paths = [folder / "refused" / str(i) for i in range(len(cases))]
    for path in paths:
        shutil.copytree(recording.start, path)
    ends = in_ranks(trial.ranks, partial(_each, trial, paths, cases), patience=60)
    said = list(zip(*map(_values, ends), strict=True))
    left = [tuple(sorted(os.listdir(path))) for path in paths]
    seen = looked(trial, paths)
    operations = [recording.done[case.rank][case.number] for case in cases]
    return [Told(*row) for row in zip(cases, operations, said, left, seen, strict=True)]


def _values(end: End) -> list[str]:
    assert end.code == 0, end.error or end
    return list(end.value)


def _each(trial: Trial, paths: Sequence[Path], cases: Sequence[Refused], world: Any) -> list[str]:
    return [
        attempt(trial, path, world, case.before() if case.rank == world.rank else nothing)
        for path, case in zip(paths, cases, strict=True)
    ]


def attempt(trial: Trial, path: Path, world: Any, before: Before = nothing) -> str:
    """What it was refused with, or nothing."""
    try:
        with interposed(path, before):
            trial.act(path, world)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
