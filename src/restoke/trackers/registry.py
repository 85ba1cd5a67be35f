"""The trackers that can be asked for by name, each imported when it is asked for."""

from __future__ import annotations

import importlib

from restoke.errors import SpecError, nearest
from restoke.trackers.tracker import Tracker

_PLACES: dict[str, str] = {}  # `module:class` by name


def register(name: str, place: str) -> None:
    """Let `name` mean the class at `module:class`, made with the name of the run (and a folder, where it says so)."""
    _PLACES[name] = place


def names() -> list[str]:
    """Those that are known."""
    return sorted(_PLACES)


def tracker_class(name: str) -> type[Tracker]:
    """The class of this name.

    Raises:
        SpecError: there is none, or its library is not installed.
    """
    if name not in _PLACES:
        instead = (
            f"{nearest(name, _PLACES)}, or an object with log(values, step)" if _PLACES else "an object with log(values, step)"
        )
        raise SpecError.of("log_with", name, "there is no tracker of this name", instead)
    module, _, cls = _PLACES[name].partition(":")
    try:
        found: type[Tracker] = vars(importlib.import_module(module))[cls]
    except ImportError as error:
        raise SpecError.of("log_with", name, f"its library is missing ({error})", f"pip install {name}") from error
    return found
