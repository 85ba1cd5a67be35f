"""A rank that saves and leaves where it is asked to, without torch: `leaves_in_order.py FOLDER CASE`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from restoke.stopped import Stopped, promise

LONG = 100  # seconds: longer than any test
folder, case, rank = Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
asked: list[int] = []


def leave() -> None:
    """As `session.resume` does it, all at once: the agent may send SIGTERM to whoever is still there."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"left-{rank}").touch()
    wait_until(lambda: all((folder / f"left-{other}").exists() for other in range(2)))
    if rank == 0:
        sys.stderr.write("the main rank says so\n")
        time.sleep(0.5)  # its last words take longer than the agent waits for
    raise Stopped(4, "step-4", "here")


def wait_until(holds: object) -> None:
    end = time.monotonic() + LONG
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


if case != "promises nothing":
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    promise()
(folder / f"ready-{rank}").touch()
if case == "by themselves":
    leave()
if case == "takes long":
    wait_until(lambda: asked)
    (folder / f"deaf-{rank}").touch()
    time.sleep(LONG)
wait_until(lambda: asked)
leave()
