"""All names of the face in one module: what Accelerate keeps in `accelerate.utils`."""

from __future__ import annotations

import importlib
from typing import Any

from restoke.facades.accelerate import availability
from restoke.facades.accelerate.names import HOME, PLACES

__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(importlib.import_module(f"{HOME}.{PLACES[name]}"), name)
    if name.startswith("is_"):
        return getattr(availability, name)
    raise AttributeError(f"Accelerate's face has no {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
