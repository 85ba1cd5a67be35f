"""Strategies that other installed packages bring, found by their entry points and loaded once."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from restoke.configs import register

GROUP = "restoke.strategies"


class Plugin(NamedTuple):
    """What an entry point named: the `value` it loaded, or the `error` that it raised."""

    name: str
    package: str
    value: Any = None
    error: str = ""


@cache
def plugins() -> tuple[Plugin, ...]:
    """Every entry point of the group, loaded, and the settings class of each made known."""
    return tuple(_load(point) for point in entry_points(group=GROUP))


def _load(point: EntryPoint) -> Plugin:
    package = point.dist.name if point.dist else point.module
    try:
        row = point.load()
        if row.settings_class is not None:
            register(row.settings or row.name, row.settings_class)
    except Exception as error:  # noqa: BLE001
        # another package's code: whatever it raises must not take the table down with it
        return Plugin(point.name, package, error=f"{type(error).__name__}: {error}")
    return Plugin(point.name, package, row)
