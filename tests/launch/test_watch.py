"""The watch sees children end, and ends those that outlive a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from restoke.launch import watch as watching
from restoke.launch.records import Record
from restoke.launch.watch import Watch, peek

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere exit codes are not seen")
Child = subprocess.Popen[bytes]


@pytest.fixture
def children(tmp_path: Path) -> Iterator[list[Child]]:
    """Two ranks that only sleep, each the leader of its group as the agent's are."""
    started = [subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(2)]
    for rank, child in enumerate(started):
        Record(rank=rank, pid=child.pid).write(tmp_path)
    yield started
    for child in started:
        child.kill()
        child.wait()


def test_a_child_is_seen_to_end_and_is_not_reaped(children: list[Child]) -> None:
    child = children[0]
    assert peek(child.pid) == (False, None)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert peek(child.pid) == (True, -signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert peek(child.pid) == (True, None)


def test_after_a_failure_the_others_are_killed_when_their_grace_is_over(
    children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "GRACE", 0.2)
    children[0].send_signal(signal.SIGSTOP)
    with Watch(tmp_path, range(2)) as watch:
        children[1].send_signal(signal.SIGSEGV)
        assert children[0].wait(timeout=5) == -signal.SIGKILL
    stopped, crashed = watch.ends({0: -signal.SIGKILL})
    assert (crashed.code, crashed.killed) == (-signal.SIGSEGV, False)
    assert (stopped.code, stopped.killed) == (-signal.SIGKILL, True)
    assert crashed.alive_ns < crashed.gone_ns < stopped.gone_ns


def test_a_rank_that_was_reaped_unseen_has_the_code_that_its_owner_knows(children: list[Child], tmp_path: Path) -> None:
    children[1].kill()
    children[1].wait()
    with Watch(tmp_path, range(2)) as watch:
        wait_for(lambda: watch.ends({})[1].gone_ns - watch.ends({})[1].alive_ns < 1e9)
    assert watch.ends({1: 5})[1].code == 5


def test_a_signal_to_this_process_starts_the_grace_of_that_signal(
    children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PATIENCE", {signal.SIGHUP: 0.1})
    seen = threading.Event()
    before = signal.signal(signal.SIGHUP, lambda *_: seen.set())
    try:
        with Watch(tmp_path, range(2)):
            os.kill(os.getpid(), signal.SIGHUP)
            assert [child.wait(timeout=5) for child in children] == [-signal.SIGKILL] * 2
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen.is_set()
    assert signal.set_wakeup_fd(-1) == -1


def test_a_rank_that_finished_does_not_start_the_end_of_the_others(
    children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "GRACE", 0.0)
    done = subprocess.Popen(["true"], start_new_session=True)
    Record(rank=0, pid=done.pid, phase="finished").write(tmp_path)
    with Watch(tmp_path, range(2)) as watch:
        done.wait()  # reaped, perhaps before it was seen
        looked = time.monotonic_ns() + 10 * int(watching.PERIOD * 1e9)
        wait_for(lambda: watch.ends({})[1].alive_ns > looked)
    assert children[1].poll() is None
    assert watch.ends({})[0].code == 0


def wait_for(holds: object, seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)
