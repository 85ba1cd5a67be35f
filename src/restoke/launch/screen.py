"""The main rank's output: live on this process's own streams, as a terminal where they are one, and in its log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import termios
import threading
from pathlib import Path
from typing import Self, final

CHUNK = 1 << 16


@final
class Screen:
    """A context: `paths` are the two files that the main rank writes to while it is open."""

    def __init__(self, log: Path, folder: Path, streams: tuple[int, int] = (1, 2)) -> None:
        """`folder` must be able to hold named pipes; network file systems often cannot."""
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._held: list[int] = [self._log]
        self._from: dict[int, int] = {}  # what is read -> the stream that it is shown on
        self.paths = tuple(self._way(own, folder) for own in streams)
        self._stop, self._stopper = os.pipe()
        self._held += [self._stop, self._stopper]
        self._thread = threading.Thread(target=self._copy, name="restoke-screen", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns when everything that was written before is shown."""
        os.write(self._stopper, b"x")
        self._thread.join()
        for held in self._held:
            os.close(held)

    def _way(self, own: int, folder: Path) -> str:
        return self._terminal(own) if os.isatty(own) else self._pipe(own, folder / f"stream-{own}")

    def _terminal(self, own: int) -> str:
        """A terminal of the same size, whose lines pass unchanged: programs draw progress on it as they would directly."""
        reads, writes = os.openpty()
        mode = termios.tcgetattr(writes)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(writes, termios.TCSANOW, mode)
        with contextlib.suppress(OSError):
            fcntl.ioctl(writes, termios.TIOCSWINSZ, fcntl.ioctl(own, termios.TIOCGWINSZ, bytes(8)))
        os.set_blocking(reads, False)
        self._held += [reads, writes]  # with the writing end open here, reading ends with "nothing yet", never with an error
        self._from[reads] = own
        return os.ttyname(writes)

    def _pipe(self, own: int, path: Path) -> str:
        os.mkfifo(path)
        reads = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._held.append(reads)
        self._from[reads] = own
        return str(path)

    def _copy(self) -> None:
        with selectors.DefaultSelector() as selector:
            for reads in (*self._from, self._stop):
                selector.register(reads, selectors.EVENT_READ)
            stopped = False
            while not stopped:
                ready = {key.fd for key, _ in selector.select()}
                stopped = self._stop in ready
                for reads, own in self._from.items():
                    if reads in ready:
                        self._pass_on(reads, own)

    def _pass_on(self, reads: int, own: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reads, CHUNK):
                _write(self._log, data)
                _write(own, data)


def _write(to: int, data: bytes) -> None:
    """All of it; a reader that went away (`| head`) or a full disk ends the copy, not the job."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(to, data) :]
            except BlockingIOError:  # whoever shares the stream set it to return at once
                select.select((), (to,), ())
