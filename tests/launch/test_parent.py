"""What happens to the ranks when something happens to the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.processes import WAYS, assert_gone

RESTOKE = (sys.executable, "-m", "restoke.cli", "launch", "--device", "cpu", "--processes", "2")

STARTED = "restoke: starting strategy=ddp, device=cpu, processes=2"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise to end orphans is Linux's")


def started(case: str, folder: Path) -> subprocess.Popen[str]:
    """A job whose ranks have both come to their script."""
    launcher = subprocess.Popen([*RESTOKE, str(WAYS), case, str(folder)], cwd=folder, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not all((folder / f"{case}-{rank}").exists() for rank in range(2)):
        assert launcher.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return launcher


def test_ctrl_c_ends_every_process(mark: str, tmp_path: Path) -> None:
    launcher = started("waits", tmp_path)
    launcher.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, said = launcher.communicate(timeout=20)
    assert time.monotonic() - began < 6
    assert launcher.returncode == 130
    assert said.splitlines() == [STARTED, "restoke: stopped by SIGINT"]
    assert_gone(mark)


def test_ranks_do_not_outlive_a_launcher_that_was_killed(mark: str, tmp_path: Path) -> None:
    launcher = started("waits", tmp_path)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate(timeout=20)
    assert_gone(mark)


def test_sigterm_reaches_the_ranks_and_gives_them_time_to_save(mark: str, tmp_path: Path) -> None:
    launcher = started("saves", tmp_path)
    launcher.send_signal(signal.SIGTERM)
    _, said = launcher.communicate(timeout=20)
    assert launcher.returncode == 143
    assert said.splitlines() == [STARTED, "restoke: stopped by SIGTERM"]
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert_gone(mark)


def test_ctrl_c_also_ends_ranks_that_do_not_hear_it(mark: str, tmp_path: Path) -> None:
    launcher = started("is_stopped", tmp_path)
    launcher.send_signal(signal.SIGINT)
    began = time.monotonic()
    launcher.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert launcher.returncode == 130
    assert_gone(mark)
