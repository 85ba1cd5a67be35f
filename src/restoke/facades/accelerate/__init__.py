"""Accelerate's face: everything that its scripts import, under the names that they import it by.

`restoke launch --as accelerate` lets `import accelerate` find it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from restoke._version import __version__
from restoke.facades.accelerate.names import HOME, MODULES, PLACES, VIRTUAL
from restoke.launch.alias import Alias

__all__ = ["MODULES", "__version__", *PLACES]  # noqa: PLE0604

# modules that have no file of their own here, such as `restoke.facades.accelerate.utils`
sys.meta_path.append(Alias({f"{HOME}.{name}": f"{HOME}.{module}" for name, module in VIRTUAL.items()}))


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"Accelerate's face has no {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
