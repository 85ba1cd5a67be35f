"""Help is there at once: the command line does not wait for torch."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest


def cpu_seconds(*words: str) -> float:
    """User and system time of one command line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "restoke.cli", *words], stdout=subprocess.DEVNULL, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(("words", "bound"), [(["--help"], 0.25), (["launch", "--help"], 0.5)])
def test_help_takes_no_more_cpu_time_than_this(words: list[str], bound: float) -> None:
    assert min(cpu_seconds(*words) for _ in range(5)) <= bound


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["launch", "--help"],
        ["check", "--device", "cpu"],
        ["check", "--device", "cpu", "--precision", "none"],
        ["launch", "--device", "cpu", "script.py"],
    ],
)
def test_torch_is_not_imported_for(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    code = f"""
import os, sys
from restoke.cli import main
os.execve = lambda *_: os._exit(10 + ("torch" in sys.modules))
main({words!r})
os._exit(10 + ("torch" in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 10
