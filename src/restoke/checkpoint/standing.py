"""Whether what is being read is still what it was: a save may replace or delete it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from restoke.checkpoint.manifest import NAME

TRIES = 8  # that a reader begins anew because of saves, before it gives up
Mark = tuple[int, int, int] | None


def mark(path: Path) -> Mark:
    """Of the checkpoint at this path: inode, time and size of its manifest, changed by the next save. None: it is not there."""
    try:
        found = (path / NAME).lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def names(folder: Path) -> dict[str, int]:
    """What is in the folder: names and inodes. Raises OSError."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}
