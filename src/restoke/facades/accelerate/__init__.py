"""Accelerate's face: everything that its scripts import, under the names that they import it by."""

from __future__ import annotations

import importlib
from typing import Any

from restoke._version import __version__
from restoke.facades.accelerate.names import PLACES

__all__ = ["__version__", *PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"Accelerate's face has no {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
