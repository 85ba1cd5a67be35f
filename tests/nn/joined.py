"""Real ranks that have joined their process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from restoke.configs.rendezvous import Rendezvous
from restoke.errors import RestokeError
from restoke.ranks import discover
from restoke.world import World
from tests import ranks


def run(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """`fn(*args)` on every rank of a process group of n; what they returned, in order."""
    return ranks.run(n, _joined, fn, *args)


def _joined(fn: Callable[..., Any], *args: Any) -> Any:
    World.join("cpu", discover(), Rendezvous(), many=True)
    return fn(*args)


def refused(fn: Callable[..., Any], *args: Any) -> str:
    """What the refusal says; nothing where there was none."""
    try:
        fn(*args)
    except RestokeError as error:
        return f"{type(error).__name__}: {error}"
    return ""
