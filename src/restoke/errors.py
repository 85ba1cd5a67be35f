"""What restoke refuses, and how it says so: every message names the axis, what it got, why not, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """One reason why a declaration cannot be obeyed.

    `axis` is the name of the setting as the user writes it, `got` its value, `why` and `instead` are sentences
    without their final full stop.
    """

    axis: str
    got: Any
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.axis}={self.got!r}: {self.why}. Instead: {self.instead}."


class RestokeError(Exception):
    """The root of every error that restoke raises on purpose. `problems` holds each reason."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return "\n".join([f"{len(self.problems)} problems.", *(f"  {problem}" for problem in self.problems)])

    @classmethod
    def of(cls, axis: str, got: Any, why: str, instead: str) -> RestokeError:
        """The error for one problem."""
        return cls(Problem(axis, got, why, instead))


class SpecError(RestokeError, ValueError, TypeError):
    """A declaration that cannot be obeyed: a setting, a name, or a combination of them."""


class WorldError(RestokeError, RuntimeError):
    """The processes, or the device of one, are not as declared."""


class SessionError(RestokeError, RuntimeError):
    """A verb was called where it cannot work."""


class DataError(RestokeError, ValueError, TypeError):
    """A dataset, sampler or batch that cannot be used as asked."""


class CheckpointError(RestokeError, RuntimeError):
    """A checkpoint that is missing, damaged, foreign, or does not fit."""


class LaunchError(RestokeError, RuntimeError):
    """A job that cannot be started, or in which a rank failed."""


def nearest(name: object, known: Iterable[str]) -> str:
    """The words for a mistyped name: the nearest right one, else all of them."""
    import difflib  # only who mistypes waits for it

    names = list(known)
    lower = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    return f"did you mean {lower[close[0]]!r}" if close else f"one of: {', '.join(sorted(names))}"
