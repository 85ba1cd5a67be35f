"""Finds Accelerate's own test scripts, where that library is installed, so that they run against this face."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import final

NAME = "accelerate.test_utils"


@final
class Suite(MetaPathFinder):
    """The package of this one name; what it imports beside itself is ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        real = PathFinder.find_spec("accelerate")
        return None if real is None else PathFinder.find_spec(NAME, real.submodule_search_locations)


def install() -> None:
    """From now on it is found; twice is once."""
    if not any(isinstance(finder, Suite) for finder in sys.meta_path):
        sys.meta_path.insert(0, Suite())
