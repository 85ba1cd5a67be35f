"""The pool of real ranks, as tests name it."""

from __future__ import annotations

from restoke.testing.ranks import RankError, run

__all__ = ["RankError", "run"]
