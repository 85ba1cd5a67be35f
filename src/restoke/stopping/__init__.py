"""Leaving in order: all ranks stop after the same step, save, and go on from there when they are started again."""

from __future__ import annotations

from restoke.stopped import RESUME as RESUME
from restoke.stopped import Stopped as Stopped
from restoke.stopping.joint import resume as resume
from restoke.stopping.resuming import end as end

__all__ = ["RESUME", "Stopped", "end", "resume"]
