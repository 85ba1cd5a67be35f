"""Signals to the launcher: the first asks the ranks to end, an echo changes nothing, and a later one ends them at once."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import final

from torch.distributed.elastic.multiprocessing import SignalException

from restoke.stopping.signals import ECHO

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
AGENTS = signal.SIGQUIT  # left to torchrun's agent, which must be told of one at least


@final
class Requests:
    """The handlers of this process: the agent's own would take an echo for impatience, and leave off waiting for the ranks."""

    def __init__(self) -> None:
        self._since: float | None = None

    def take(self) -> None:
        """Install them. SIGUSR1 is passed on by `restoke.launch.watch`."""
        for number in ENDING:
            signal.signal(number, self._asked)
        signal.signal(signal.SIGUSR1, lambda *_: None)

    def _asked(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._since is not None and now - self._since <= ECHO:
            return
        self._since = self._since or now
        raise SignalException(f"process {os.getpid()} got signal {number}", sigval=signal.Signals(number))
