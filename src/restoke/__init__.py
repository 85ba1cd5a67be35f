"""restoke: declare what you want, keep your own PyTorch code, find out what it really does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from restoke._version import __version__

if TYPE_CHECKING:
    from restoke.optim import OptimizerSpec as OptimizerSpec
    from restoke.session import Session as Session
    from restoke.spec import Spec as Spec

# where each public name is, loaded on first use: `restoke --help` must not wait for torch
_PLACES = {
    "OptimizerSpec": "restoke.optim",
    "Session": "restoke.session",
    "Spec": "restoke.spec",
    "RestokeError": "restoke.errors",
    "Loader": "restoke.data",
    "BucketedDistributedSampler": "restoke.data",
}

__all__ = ["__version__", *_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'restoke' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
