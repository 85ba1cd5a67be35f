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


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty one, in memory where there is room for that: thousands of small files are synced."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as path:
        yield Path(path)
