"""Checkpoints: one safetensors file per rank and a manifest, the same for every strategy and readable at any world size."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restoke.checkpoint.exporting import Exported as Exported
    from restoke.checkpoint.exporting import export as export
    from restoke.checkpoint.generations import Entry as Entry
    from restoke.checkpoint.generations import listing as listing
    from restoke.checkpoint.opening import Opened as Opened
    from restoke.checkpoint.opening import read as read
    from restoke.checkpoint.saving import write as write
    from restoke.checkpoint.unsafe import read_stoke as read_stoke
    from restoke.checkpoint.weights import Weights as Weights
    from restoke.checkpoint.weights import open_weights as open_weights

# loaded on first use: a run that has not saved yet has not waited for it
_PLACES = {
    "Entry": "restoke.checkpoint.generations",
    "Exported": "restoke.checkpoint.exporting",
    "Opened": "restoke.checkpoint.opening",
    "Weights": "restoke.checkpoint.weights",
    "export": "restoke.checkpoint.exporting",
    "listing": "restoke.checkpoint.generations",
    "open_weights": "restoke.checkpoint.weights",
    "read": "restoke.checkpoint.opening",
    "read_stoke": "restoke.checkpoint.unsafe",
    "write": "restoke.checkpoint.saving",
}

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'restoke.checkpoint' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
