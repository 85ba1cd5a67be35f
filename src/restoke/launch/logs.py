"""One folder a job for the logs and records of its ranks; the newest ones are kept."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from restoke.errors import LaunchError

KEPT = 10
MARK = ".restoke-job"  # only folders with this file are ever removed


def new_folder(logs: Path) -> Path:
    """A new folder under `logs`, and the oldest beyond KEPT removed. Raises LaunchError where it cannot be made."""
    folder = logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
        (folder / MARK).touch()
    except OSError as error:
        raise LaunchError.of("log-dir", str(logs), f"it cannot hold a folder ({error.strerror})", "--log-dir DIR") from error
    jobs = sorted((mark.parent for mark in logs.glob(f"*/{MARK}")), key=lambda job: job.stat().st_mtime_ns)
    for old in jobs[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
