"""A reader that is interrupted at a chosen moment, and a writer that a reader visits at a chosen moment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from attrs import frozen

from restoke import checkpoint
from restoke.checkpoint import opening
from tests.faults import saves
from tests.faults.forks import alone, in_forks
from tests.faults.operations import Operation, interposed
from tests.faults.saves import NEW
from tests.faults.trials import dying

HERE = str(Path(opening.__file__).parent)
PROCESSES = 2
ALL = -1


def interrupted(read: Callable[[], Any], at: int, act: Callable[[], Any]) -> tuple[Any, int]:
    """What `read` returned, with `act` done at its moment `at`; and how many moments it has.

    A moment is a call that the package makes, or a return: between two of them it opens, lists or reads at most one file.
    """
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if not frame.f_code.co_filename.startswith(HERE):
            return
        if count == at:
            sys.setprofile(None)
            act()
            sys.setprofile(seen)
        count += 1

    sys.setprofile(seen)
    try:
        result = read()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        sys.setprofile(None)
    return result, count


def moments(folder: Path) -> int:
    """Of a reader whom nobody disturbs."""
    saves.save_alone(folder)
    (end,) = in_forks([lambda: interrupted(partial(saves.marks, folder), -1, int)])
    assert end.code == 0, end.error
    return int(end.value[1])


@final
@frozen
class Race:
    """At its moment `at`, the reader waits for a writer's first `stop` operations (all, if negative), saved under `tag`.

    `late`: the reader opens its files only when it reads tensors.
    """

    tag: str
    at: int
    stop: int = ALL
    late: bool = False


def found_in(folder: Path, races: Sequence[Race]) -> list[Any]:
    """What each reader finds: the marks, or why it found none."""
    saves.save_alone(folder / "start")
    ends = in_forks([partial(_readers, folder, races, i) for i in range(PROCESSES)], patience=150)
    assert all(end.code == 0 for end in ends), [end.error or end for end in ends]
    found = dict(pair for end in ends for pair in end.value)
    return [found[i] for i in range(len(races))]


def _readers(folder: Path, races: Sequence[Race], first: int) -> list[tuple[int, Any]]:
    return [(i, _reader(folder, folder / str(i), races[i])) for i in range(first, len(races), PROCESSES)]


def _reader(folder: Path, path: Path, race: Race) -> Any:
    shutil.copytree(folder / "start", path)
    write = partial(saves.save_alone, path, race.tag, NEW, keep=1)
    act = write if race.stop < 0 else lambda: in_forks([partial(_stopped, path, write, race.stop)])
    result, _ = interrupted(partial(late_marks if race.late else saves.marks, path), race.at, act)
    shutil.rmtree(path)
    return result


def late_marks(folder: Path) -> set[float]:
    saved = checkpoint.read(folder, None, alone())
    saved._files.clear()  # as of a checkpoint of more files than stay open
    return saves.marks_of(saved)


def _stopped(path: Path, write: Callable[[], Any], stop: int) -> None:
    with interposed(path, dying(stop)):
        write()


def visited(folder: Path, tag: str) -> list[tuple[str, Any]]:
    """What a reader finds before each operation of a writer, which goes on after it."""
    saves.save_alone(folder)
    (end,) = in_forks([partial(_visited, folder, tag)], patience=60)
    assert end.code == 0, end.error
    return list(end.value)


def _visited(folder: Path, tag: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def visit(operation: Operation) -> None:
        try:
            found.append((str(operation), saves.marks(folder)))
        except Exception as error:
            found.append((str(operation), f"{type(error).__name__}: {error}"))

    with interposed(folder, visit):
        saves.save(folder, alone(), tag, NEW, keep=1)
    found.append(("the end", saves.marks(folder)))
    return found
