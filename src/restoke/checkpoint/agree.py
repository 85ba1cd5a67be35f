"""One verdict for all ranks: what fails on one of them is raised on each, so that none waits for another for ever."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from restoke.checkpoint.messages import COLLECTIVES, Messages
from restoke.errors import CheckpointError, Problem, RestokeError
from restoke.world import World

T = TypeVar("T")
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "choose a folder that this process may use",
    errno.EPERM: "choose a folder that this process may use",
    errno.EROFS: "choose a folder that this process may use",
    errno.ENOENT: "choose a folder that all ranks share",
    errno.ENOTDIR: "choose another folder",
    errno.EEXIST: "choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def together(work: Callable[[], tuple[T, Any]], world: World, about: Path, by: Messages = COLLECTIVES) -> tuple[T, list[Any]]:
    """Every rank does its work, which returns what stays here and what all should know: JSON. Every rank calls this.

    Returns:
        What stays here, and what each rank said, in their order.

    Raises:
        CheckpointError: on every rank the same, naming the ranks whose work failed.
    """
    kept: list[T] = []

    def say() -> Any:
        mine, said = work()
        kept.append(mine)
        return said

    outcome, cause = _attempt(say, about)
    said = _values(by.gather(outcome, world), world, cause)
    return kept[0], said


def alone(work: Callable[[], Any], world: World, about: Path, by: Messages = COLLECTIVES) -> Any:
    """What `work` returned on rank 0, which alone runs it: a JSON value, on every rank. Every rank calls this.

    Raises:
        CheckpointError: on every rank, where rank 0's work failed.
    """
    outcome, cause = _attempt(work, about) if world.is_main else (None, None)
    return _values([by.broadcast(outcome, world)], world, cause)[0]


def _attempt(work: Callable[[], Any], about: Path) -> tuple[dict[str, Any], BaseException | None]:
    """What came of it, for all ranks, and what a failure is raised from: one of ours, which is said anew, from its cause."""
    try:
        return {"value": work()}, None
    except RestokeError as error:
        return {"problems": [[p.axis, str(p.got), p.why, p.instead] for p in error.problems]}, error.__cause__
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        return {"failure": ["checkpoint", str(about), _why(error), _instead(error)]}, error


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({Path(error.filename).name})" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _instead(error: Exception) -> str:
    remedy = REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"{remedy or 'see the traceback of that rank'}; what was saved before is untouched"


def _values(outcomes: list[dict[str, Any]], world: World, cause: BaseException | None) -> list[Any]:
    said: dict[tuple[str, ...], list[int]] = {}
    failed: dict[tuple[str, ...], list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        for problem in outcome.get("problems", ()):
            said.setdefault(tuple(problem), []).append(rank)
        if "failure" in outcome:
            failed.setdefault(tuple(outcome["failure"]), []).append(rank)
    if not said and not failed:
        return [outcome["value"] for outcome in outcomes]
    refused = [_problem(problem, ranks, len(outcomes)) for problem, ranks in said.items()]
    raise CheckpointError(*refused, *(_problem(problem, ranks, world.size) for problem, ranks in failed.items())) from cause


def _problem(problem: tuple[str, ...], ranks: list[int], size: int) -> Problem:
    axis, got, why, instead = problem
    if len(ranks) < size:
        why = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {why}"
    return Problem(axis, got, why, instead)
