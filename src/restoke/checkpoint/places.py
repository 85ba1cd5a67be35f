"""Where a path leads: a folder of checkpoints, one checkpoint in it, or something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from restoke.checkpoint.generations import is_checkpoint, present
from restoke.errors import CheckpointError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the system refuses below this path is a CheckpointError."""
    try:
        yield
    except OSError as error:
        why = f"it cannot be read ({error.strerror or error})"
        raise CheckpointError.of("path", str(path), why, "a folder that this process may read") from error


def placed(path: Path, tag: str | None) -> tuple[Path, str | None]:
    """The folder that was saved into, and the tag: a path may lead to one checkpoint. Raises CheckpointError."""
    with readable(path):
        if not is_checkpoint(path):
            return path, tag
    whole = path.resolve()
    if tag not in (None, whole.name):
        why = f"{path} is one checkpoint already"
        raise CheckpointError.of("tag", tag, why, f"no tag, or the folder {whole.parent}")
    return whole.parent, whole.name


def holds_checkpoints(path: Path) -> bool:
    """Whether restoke saved into this folder."""
    return path.is_dir() and bool(present(path))
