"""Who hears that the run is asked to stop: a signal handler where a process is alone, else a thread that asks the others."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any, Protocol, final

from restoke.said import say
from restoke.stopping import signals
from restoke.stopping.ballot import Ballot
from restoke.stopping.gate import NEVER, Gate

PERIOD = 0.1  # seconds between two looks into the store
PER_RANK = 0.0005  # and for each rank, since one process answers all of them
ACKNOWLEDGED = 30.0  # seconds in which every rank has to vote


class Listener(Protocol):
    """Hears signals from when it is made until it is closed."""

    def all_here(self) -> bool:
        """At the boundary to stop at: whether every rank is. Collective."""

    def leave(self) -> None:
        """All is saved: from here on signals change nothing, and the ranks leave together. Collective."""

    def close(self, give_back: bool) -> None:
        """Hear nothing more; `give_back` the signals to what they meant before."""

    def forget(self) -> None:
        """In a forked child: the signals mean what they meant before, and nothing else is touched."""


@final
class Alone:
    """Of a process without peers: the handler itself opens nothing but the way to the next boundary."""

    def __init__(self, gate: Gate, numbers: tuple[signal.Signals, ...]) -> None:
        self._gate = gate
        self._since: float | None = None
        self._before = signals.take(numbers, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._gate.demand()
        elif now - self._since > signals.ECHO:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            signal.raise_signal(number)

    def all_here(self) -> bool:
        return True

    def leave(self) -> None:
        signals.ignore(self._before)

    def close(self, give_back: bool) -> None:
        if give_back:
            signals.give_back(self._before)

    def forget(self) -> None:
        signals.give_back(self._before)


@final
class Together:
    """Of one rank among several: a thread hears the signals, also while the main thread waits inside a collective, and votes.

    Python runs a handler only between two of the main thread's own instructions; the number of the signal is written into a
    socket at once.
    """

    def __init__(self, gate: Gate, numbers: tuple[signal.Signals, ...], ballot: Ballot, size: int) -> None:
        self._gate, self._ballot = gate, ballot
        self._period = max(PERIOD, PER_RANK * size)
        self._hears, self._tells = socket.socketpair()
        self._hears.setblocking(False)
        self._tells.setblocking(False)
        self._before = signals.take(numbers, _nothing)
        self._fd_before = signal.set_wakeup_fd(self._tells.fileno(), warn_on_full_buffer=False)
        self._since: float | None = None  # when the first signal came
        self._deadline: float | None = None  # by when all must have voted
        self._ending = False
        self._look = self._watch
        self._thread = threading.Thread(target=self._listen, name="restoke-stopping", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._ending:
            self._hear()
            try:
                self._look()
            except RuntimeError:  # the store has ended with the rank that held it
                self._gate.decide(NEVER)
                self._look = self._leave_at_once

    def _hear(self) -> None:
        resting = self._look == self._rest
        select.select([self._hears], [], [], None if resting else self._period)
        with contextlib.suppress(BlockingIOError):
            for number in self._hears.recv(64):
                self._pass_on(number)
                if number in self._before:
                    self._heard(number)

    def _pass_on(self, number: int) -> None:
        if self._fd_before != -1:  # an event loop's
            with contextlib.suppress(OSError):
                os.write(self._fd_before, bytes([number]))

    def _heard(self, number: int) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since > signals.ECHO:
            _end(number, "again")

    def _watch(self) -> None:
        if self._since is not None:
            self._ballot.ask()
        elif not self._ballot.asked():
            return
        self._ballot.vote(self._gate.close())
        self._deadline = time.monotonic() + ACKNOWLEDGED
        self._look = self._count
        self._count()

    def _count(self) -> None:
        assert self._deadline is not None
        if self._ballot.complete():
            self._gate.decide(self._ballot.result())
        elif time.monotonic() > self._deadline:
            self._gate.decide(self._gate.done, self._ballot.missing())
        else:
            return
        self._look = self._rest

    def _rest(self) -> None:
        """All is decided."""

    def _leave_at_once(self) -> None:
        if self._since is not None:
            _end(signal.SIGTERM, "after another rank has gone")

    def all_here(self) -> bool:
        return self._ballot.all_here()

    def leave(self) -> None:
        signals.ignore(self._before)
        with contextlib.suppress(RuntimeError):  # the store has ended with a rank that has left already
            self._ballot.leave()

    def close(self, give_back: bool) -> None:
        if give_back:
            signals.give_back(self._before)
        signal.set_wakeup_fd(self._fd_before)
        self._ending = True
        with contextlib.suppress(OSError):
            self._tells.send(b"\0")
        self._thread.join()
        with contextlib.suppress(RuntimeError):
            self._ballot.finished()
        self._hears.close()
        self._tells.close()

    def forget(self) -> None:
        signals.give_back(self._before)
        signal.set_wakeup_fd(self._fd_before)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The thread has heard it already."""


def _end(number: int, when: str) -> Any:
    """Leave without the main thread, which may hang."""
    with contextlib.suppress(OSError, ValueError):
        say(f"{signal.Signals(number).name} {when}: leaving at once, without a checkpoint")
    os._exit(128 + number)
