"""What a rank leaves on disk about itself, so that what happened is known however it died."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import attrs
from attrs import field, frozen

Phase = Literal["running", "finished", "failed", "stopped"]


def texts(values: Iterable[str]) -> tuple[str, ...]:
    """JSON has lists only."""
    return tuple(values)


@frozen(kw_only=True)
class Record:
    """`monotonic_ns` is comparable between the processes of one machine; `chain` names the error and what caused it.

    `code` is the exit code that the rank is about to have. `saves` says that it saves and leaves where a signal asks for it;
    one that has is "stopped", and `error` says where.
    """

    rank: int
    pid: int = field(factory=os.getpid)
    phase: Phase = "running"
    saves: bool = False
    code: int = 0
    error: str = ""
    chain: tuple[str, ...] = field(default=(), converter=texts)
    traceback: str = ""
    monotonic_ns: int = field(factory=time.monotonic_ns)
    time_ns: int = field(factory=time.time_ns)

    def write(self, folder: Path) -> None:
        """Replace this rank's record at once: a reader sees the old one or the new one, never a part."""
        path = path_of(folder, self.rank)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(attrs.asdict(self)), encoding="utf-8")
        part.replace(path)


def path_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def log_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def read(folder: Path, rank: int) -> Record | None:
    """The rank's last record, or None where it left none."""
    try:
        return Record(**json.loads(path_of(folder, rank).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
