"""The fixtures of this folder."""

from __future__ import annotations

from tests.launch.processes import mark, run

__all__ = ["mark", "run"]
