"""Sees each rank of this machine end, as near as can be to when it did, and kills those that outlive a failed job."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self, final

from attrs import define, frozen

from restoke.launch.records import Record, read
from restoke.said import say
from restoke.stopped import RESUME
from restoke.stopping.signals import ECHO

PERIOD = 0.05  # seconds between two looks
GRACE = 2.0  # seconds that the others get to end after a failure
PATIENCE = {signal.SIGINT: 5.0, signal.SIGTERM: 30.0, signal.SIGHUP: 30.0}  # and after a signal


@frozen(kw_only=True)
class End:
    """How one rank ended: its last `record`, and its process's exit `code` (minus the signal that ended it; None: unknown).

    It was seen alive at `alive_ns` and gone at `gone_ns`; `killed` says that the launcher itself did it.
    """

    rank: int
    record: Record | None = None
    code: int | None = None
    alive_ns: int = 0
    gone_ns: int = 0
    killed: bool = False


@define
class _Sight:
    """What is known of one rank's process so far."""

    pid: int | None = None
    alive_ns: int = 0
    gone_ns: int = 0
    code: int | None = None
    killed: bool = False


@final
class Watch:
    """A context around a job. It peeks at its children and never reaps them: their owner is whoever started them."""

    def __init__(self, folder: Path, ranks: Iterable[int], grace: float = 0) -> None:
        """`grace` is how many seconds ranks have after a signal that have promised to save and leave."""
        self._folder = folder
        self._sights = {rank: _Sight(alive_ns=time.monotonic_ns()) for rank in ranks}
        self._grace = grace
        self._asked: float | None = None  # when the first signal came
        self._deadline: float | None = None
        self._wakes, self._woken = os.pipe()
        self._before = -1
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="restoke-watch", daemon=True)

    def __enter__(self) -> Self:
        os.set_blocking(self._woken, False)
        self._before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        signal.set_wakeup_fd(self._before)
        os.close(self._wakes)
        os.close(self._woken)

    def ends(self, codes: dict[int, int]) -> list[End]:
        """How each rank ended; `codes` fills in the exit codes that were reaped before this saw them."""
        return [self._end(rank, sight, codes.get(rank)) for rank, sight in self._sights.items()]

    def _end(self, rank: int, sight: _Sight, code: int | None) -> End:
        return End(
            rank=rank,
            record=read(self._folder, rank),
            code=code if sight.code is None else sight.code,
            alive_ns=sight.alive_ns,
            gone_ns=sight.gone_ns or time.monotonic_ns(),
            killed=sight.killed,
        )

    def kill(self) -> None:
        """SIGKILL for every rank and all that it started."""
        for sight in self._sights.values():
            if sight.pid is not None:
                sight.killed |= sight.gone_ns == 0
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(sight.pid, signal.SIGKILL)  # the agent makes each rank the leader of a group

    def _look_on(self) -> None:
        while not self._stopped.is_set():
            if select.select([self._wakes], [], [], PERIOD)[0]:
                for number in os.read(self._wakes, 64):
                    self._heard(number)
            for rank, sight in self._sights.items():
                if not sight.gone_ns and self._known(rank, sight):
                    self._look_at(rank, sight)
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._deadline = None
                self.kill()

    def _heard(self, number: int) -> None:
        """A signal to the launcher; the agent, which is the ranks' parent, passes on those that it knows."""
        now = time.monotonic()
        if number == signal.SIGUSR1:
            self._pass_on(number)
        elif number not in PATIENCE:
            return
        elif self._asked is None:
            self._asked = now
            self._expect_end(self._patience(signal.Signals(number)))
        elif now - self._asked > ECHO:
            self.kill()

    def _patience(self, number: signal.Signals) -> float:
        if not self._saving():
            return PATIENCE[number]
        say(f"{number.name}: the ranks have {self._grace:.0f} s to save and leave; once more ends them at once")
        return self._grace

    def _saving(self) -> list[int]:
        """The process ids of the ranks that have promised to save and leave."""
        records = [read(self._folder, rank) for rank in self._sights]
        return [record.pid for record in records if record is not None and record.saves]

    def _pass_on(self, number: int) -> None:
        """What schedulers send ahead of a time limit. It would kill a rank that does not expect it."""
        if not (saving := self._saving()):
            say(f"{signal.Signals(number).name}: no rank saves and leaves then (session.resume): nothing is done")
        for pid in saving:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _expect_end(self, grace: float) -> None:
        self._deadline = min(self._deadline or float("inf"), time.monotonic() + grace)

    def _known(self, rank: int, sight: _Sight) -> bool:
        """Each rank tells its process id by its first record."""
        if sight.pid is None and (record := read(self._folder, rank)) is not None:
            sight.pid = record.pid
        return sight.pid is not None

    def _look_at(self, rank: int, sight: _Sight) -> None:
        before = time.monotonic_ns()
        gone, sight.code = peek(sight.pid or 0)
        if not gone:
            sight.alive_ns = before
            return
        sight.gone_ns = time.monotonic_ns()
        if sight.code is None:
            record = read(self._folder, rank)
            sight.code = 0 if record is not None and record.phase == "finished" else None
        if sight.code != 0:
            self._expect_end(max(self._grace, GRACE) if sight.code == RESUME else GRACE)


def peek(pid: int) -> tuple[bool, int | None]:
    """Whether a child is gone, and its exit code where that can be seen: neither another reaped it, nor is this macOS."""
    if sys.platform != "linux":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True, None
        return False, None
    try:
        left = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True, None
    if left is None:
        return False, None
    return True, left.si_status if left.si_code == os.CLD_EXITED else -left.si_status
