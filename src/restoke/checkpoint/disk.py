"""Every file operation of a save, in one place, so that a test can count them, refuse one, or kill the process before it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import final

from attrs import frozen

from restoke.errors import CheckpointError

if sys.platform != "win32":
    import fcntl

BUFFER = 1 << 20  # bytes; small writes are collected, larger ones pass through
LOCK = ".lock"
PATIENCE = 60.0  # seconds that a writer waits for another one in the same folder


def _nothing(operation: str, path: Path) -> None:
    pass


@final
@frozen
class Disk:
    """`before(operation, path)` runs ahead of each: "make", "create", "write", "sync", "rename", "remove"."""

    before: Callable[[str, Path], None] = _nothing

    def make(self, folder: Path) -> None:
        """Make the folder and its missing parents, to stay."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            self.before("make", path)
            path.mkdir(exist_ok=True)
            self.sync(path.parent)

    def write(self, path: Path, pieces: Iterable[memoryview | bytes]) -> None:
        """A new file of these bytes; when this returns, they are on the disk."""
        self.before("create", path)
        with path.open("xb", buffering=BUFFER) as file:
            for piece in pieces:
                self.before("write", path)
                file.write(piece)
            file.flush()
            self.before("sync", path)
            os.fsync(file.fileno())

    def sync(self, folder: Path) -> None:
        """When this returns, the names in the folder are on the disk."""
        self.before("sync", folder)
        if sys.platform == "win32":
            return  # a folder cannot be opened there; NTFS journals its names
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        self.before("rename", target)
        source.rename(target)

    def remove(self, folder: Path) -> None:
        """The folder with all that is in it."""
        self.before("remove", folder)
        shutil.rmtree(folder)


DISK = Disk()


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[bool]:
    """Keep other writers out of the folder; the lock dies with its process. False where the file system has no locks.

    Raises:
        CheckpointError: another process kept the folder for longer than `PATIENCE`.
    """
    if sys.platform == "win32":
        yield False
        return
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield _locked(handle, folder)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has the handle too, and would hold on
        os.close(handle)


def _locked(handle: int, folder: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False
        else:
            return True
        if time.monotonic() > deadline:
            why = f"another process has been saving into this folder for {PATIENCE:.0f} s"
            raise CheckpointError.of("checkpoint", str(folder), why, "give each run a folder of its own")
        time.sleep(0.02)
