"""The folders of this folder's tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]  # /proc, pidfd and prctl


def in_memory() -> tempfile.TemporaryDirectory[str]:
    """An empty folder, in memory where there is room for that: thousands of small files are synced."""
    return tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as path:
        yield Path(path)
