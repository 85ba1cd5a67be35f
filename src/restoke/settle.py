"""The last moment before Python ends: gloo's threads are let finish, for one that is caught in between aborts the process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

PAUSE = 0.005  # seconds between two looks
LONGEST = 1.0  # seconds


def settle(tasks: Path = Path("/proc/self/task")) -> None:
    """Wait until every thread of gloo's sleeps.

    After a collective is done, gloo's thread drops its last references, and needs the interpreter's lock for it. A thread that
    asks for the lock when Python has begun to end is unwound by force, through C++ that forbids it: `terminate called`.
    """
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        time.sleep(PAUSE)  # without the lock
        if sys.platform != "linux" or all(map(_sleeps, tasks.iterdir())):
            return


def _sleeps(task: Path) -> bool:
    try:
        name, _, rest = (task / "stat").read_text().rpartition(")")
    except OSError:
        return True  # it has ended
    return "gloo" not in name or rest.split()[0] == "S"
