"""The gate at each boundary, where the main thread of a rank is held while all ranks agree on where to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

NEVER = 1 << 62


@final
class Gate:
    """Counts the boundaries, one after each optimizer step, that the main thread comes to.

    `done` is the one that it came to last, and `at` the first at which it looks up. `decision` is the one to stop at. Another
    thread closes the gate and decides; the main thread counts, waits and opens.
    """

    def __init__(self) -> None:
        self.done = 0
        self.at = NEVER
        self.decision = NEVER
        self.missing: tuple[int, ...] = ()  # ranks without which nothing could be decided
        self._closed = False
        self._decided = threading.Event()
        self._lock = threading.Lock()

    def counting(self, look_up: Callable[[], None]) -> Callable[[], None]:
        """What the main thread calls at each boundary: one addition and one comparison, unless there is a reason to look up."""

        def passed() -> None:
            self.done = done = self.done + 1
            if done >= self.at:
                look_up()

        return passed

    def close(self) -> int:
        """Hold the main thread at the boundary that it comes to next; returns the last that this can be."""
        with self._lock:
            self._closed, self.at = True, -1
        # Read after closing, never before: whoever passed the open gate had counted before, and is held at the next one.
        return self.done + 1

    def decide(self, boundary: int, missing: tuple[int, ...] = ()) -> None:
        """Stop at this boundary, or NEVER."""
        self.decision, self.missing = boundary, missing
        self._decided.set()

    def demand(self) -> None:
        """Stop at the next boundary. It takes no lock: a signal handler interrupts the main thread wherever that is."""
        self.decision = 0
        self.at = -1

    def wait(self) -> None:
        """Where the gate is closed, until something was decided."""
        if self._closed:
            self._decided.wait()

    def open(self, until: int) -> None:
        """Let the main thread pass until it comes to this boundary, unless the gate was closed meanwhile."""
        with self._lock:
            if not self._closed or self._decided.is_set():
                self.at = min(until, self.decision)
        if self.decision < self.at:  # noqa: PLR1730 - demanded meanwhile: `at` is written only where that was before
            self.at = self.decision
