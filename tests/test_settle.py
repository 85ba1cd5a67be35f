"""Before Python ends, gloo's threads are waited for, but not for ever."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from restoke import settle as module
from restoke.settle import settle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def thread(tasks: Path, name: str, state: str) -> Path:
    file = tasks / "7" / "stat"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"7 ({name}) {state} 1 2 3")
    return file


@pytest.mark.parametrize(("name", "state"), [("pt_gloo_runloop", "S"), ("python", "R"), ("a) gloo R (b", "S")])
def test_sleeping_threads_and_those_of_others_are_not_waited_for(tmp_path: Path, name: str, state: str) -> None:
    thread(tmp_path, name, state)
    start = time.monotonic()
    settle(tmp_path)
    assert time.monotonic() - start < 0.5


def test_a_running_thread_of_gloos_is_waited_for_until_it_sleeps(tmp_path: Path) -> None:
    file = thread(tmp_path, "pt_gloo_runloop", "R")
    timer = threading.Timer(0.1, lambda: thread(tmp_path, "pt_gloo_runloop", "S"))
    timer.start()
    start = time.monotonic()
    settle(tmp_path)
    assert time.monotonic() - start >= 0.1
    timer.join()
    assert file.exists()


def test_a_thread_that_never_sleeps_does_not_hold_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread(tmp_path, "pt_gloo_runloop", "R")
    monkeypatch.setattr(module, "LONGEST", 0.05)
    start = time.monotonic()
    settle(tmp_path)
    assert time.monotonic() - start < 1.0
