"""A job that is asked to stop, as a scheduler sees it: signals and exit codes, and the same weights in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from restoke import checkpoint
from restoke.errors import LaunchError
from restoke.launch import requests
from restoke.launch.blame import all_stopped, verdict
from restoke.launch.job import Target
from restoke.launch.plan import plan
from restoke.launch.records import Record
from restoke.launch.watch import End
from restoke.stopped import RESUME
from restoke.stopping.signals import ECHO
from tests.ranks import run as run_on_ranks
from tests.stopping import on_ranks

LIGHT = Path(__file__).with_name("leaves_in_order.py")
SCRIPT = Path(__file__).with_name("preempted.py")
ROOT = Path(__file__).parents[2]
RESTOKE = (sys.executable, "-m", "restoke.cli", "launch", "--device", "cpu", "--processes", "2")
TORCHRUN = (sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
LINE = "restoke: stopped at step {} and saved step-{} in {}: the same command goes on from there"
ASKED = "restoke: {}: the ranks have 120 s to save and leave; once more ends them at once"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher sees how ranks end on Linux alone")


@pytest.fixture(scope="module")
def wholes() -> list[on_ranks.Ran]:
    """What the ranks of the kept pool come to, which nobody asks to stop. They are started before any job is marked."""
    return run_on_ranks(2, on_ranks.whole)


@pytest.fixture
def start(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """Start the script, and read the launcher's own first line; nothing of it may be left when the test is over."""
    assert mark
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)

    def start(case: str, launcher: tuple[str, ...] = RESTOKE, script: Path = SCRIPT) -> subprocess.Popen[str]:
        command = [*launcher, str(script), str(tmp_path), case]
        job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        if launcher is RESTOKE:
            assert job.stderr is not None
            assert job.stderr.readline() == "restoke: starting strategy=ddp, device=cpu, processes=2\n"
        return job

    return start


def ended(job: subprocess.Popen[str]) -> tuple[int, list[str]]:
    _, said = job.communicate(timeout=100)
    return job.returncode, said.splitlines()


def steps_saved(folder: Path) -> int:
    newest = checkpoint.listing(folder / "checkpoints")[0]
    return int(newest.tag.removeprefix("step-"))


def test_a_job_that_was_stopped_ends_as_one_that_never_was_under_another_launcher_too(
    wholes: list[on_ranks.Ran], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    code, said = ended(start("rank 1 is asked"))
    steps = steps_saved(tmp_path)
    assert said == [LINE.format(steps, steps, tmp_path / "checkpoints")]
    assert code == RESUME
    assert steps in (2, 3)
    assert ended(start("nobody is asked", TORCHRUN))[0] == 0
    assert_trained(tmp_path, wholes)


def assert_trained(folder: Path, wholes: list[on_ranks.Ran]) -> None:
    for rank, whole in enumerate(wholes):
        told = json.loads((folder / f"trained-{rank}.json").read_text())
        assert (told["steps"], told["weights"]) == (whole.steps, whole.weights)
        if rank == 0:
            assert told["buffers"] == whole.buffers


@pytest.mark.slow
def test_it_can_be_stopped_again_and_again_by_the_launcher_and_under_torchrun(
    wholes: list[on_ranks.Ran], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = start("the launcher is asked")
    ready(job, tmp_path, "trains")
    job.send_signal(signal.SIGTERM)
    code, said = ended(job)
    first = steps_saved(tmp_path)
    assert said == [ASKED.format("SIGTERM"), LINE.format(first, first, tmp_path / "checkpoints")]
    assert code == RESUME
    assert first in (2, 3)

    code, said = ended(start("rank 1 is asked", TORCHRUN))
    second = steps_saved(tmp_path)
    assert second > first
    assert LINE.format(second, second, tmp_path / "checkpoints") in said
    assert any(f"exitcode  : {RESUME}" in line for line in said)
    assert code == 1  # torchrun's own, for ranks that end with anything but 0

    assert ended(start("nobody is asked")) == (0, [])
    assert_trained(tmp_path, wholes)


def stopped(rank: int, code: int | None = RESUME, killed: bool = False) -> End:
    record = Record(rank=rank, phase="stopped", code=RESUME, error="stopped at step 1")
    return End(rank=rank, record=record, code=code, killed=killed)


def test_ranks_that_stopped_have_not_failed_however_their_processes_ended() -> None:
    ends = [stopped(0), stopped(1, -signal.SIGKILL, killed=True), stopped(2, -signal.SIGTERM)]
    assert verdict(ends) is None
    assert all_stopped(ends)


def test_one_rank_that_failed_is_named_beside_others_that_stopped() -> None:
    failed = End(rank=1, record=Record(rank=1, phase="failed", code=1, error="E", chain=("E",)), code=1)
    found = verdict([stopped(0), failed])
    assert found is not None
    assert (found.first.rank, found.code, found.after) == (1, 1, ())
    assert not all_stopped([stopped(0), failed])
    assert not all_stopped([stopped(0), End(rank=1, record=Record(rank=1, phase="finished"), code=0)])


def ready(job: subprocess.Popen[str], folder: Path, name: str = "ready") -> None:
    wait_until(lambda: all((folder / f"{name}-{rank}").exists() for rank in range(2)), job)


def wait_until(holds: Callable[[], bool], job: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGTERM, [ASKED.format("SIGTERM")]), (signal.SIGINT, [ASKED.format("SIGINT")]), (signal.SIGUSR1, [])],
)
def test_a_signal_to_the_launcher_reaches_the_ranks_and_it_exits_as_they_do(
    number: signal.Signals, said: list[str], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = start("when they are asked", script=LIGHT)
    ready(job, tmp_path)
    job.send_signal(number)
    assert ended(job) == (RESUME, [*said, "the main rank says so"])


def test_ranks_that_leave_at_different_moments_are_let(start: Callable[..., subprocess.Popen[str]]) -> None:
    assert ended(start("by themselves", script=LIGHT)) == (RESUME, ["the main rank says so"])


def test_a_signal_for_which_no_rank_is_ready_is_not_passed_on(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = start("promises nothing", script=LIGHT)
    ready(job, tmp_path)
    job.send_signal(signal.SIGUSR1)
    assert job.stderr is not None
    assert job.stderr.readline() == "restoke: SIGUSR1: no rank saves and leaves then (session.resume): nothing is done\n"
    job.send_signal(signal.SIGTERM)
    assert ended(job) == (128 + signal.SIGTERM, ["restoke: stopped by SIGTERM"])


@pytest.mark.parametrize("grace", ["0.2", "100"])
def test_ranks_that_take_too_long_are_killed_and_so_they_are_at_a_second_signal(
    grace: str, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = start("takes long", (*RESTOKE, "--grace", grace), LIGHT)
    ready(job, tmp_path)
    job.send_signal(signal.SIGTERM)
    began = time.monotonic()
    if grace == "100":
        job.send_signal(signal.SIGTERM)  # an echo, as many schedulers send it
        ready(job, tmp_path, "deaf")
        wait_until(lambda: time.monotonic() - began > ECHO + 0.2, job)
        job.send_signal(signal.SIGTERM)
    code, said = ended(job)
    assert time.monotonic() - began < 10
    assert (code, said[-1]) == (128 + signal.SIGTERM, "restoke: stopped by SIGTERM")


def test_an_echo_is_no_second_request_and_a_later_signal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(requests.time, "monotonic", lambda: now[0])
    asked = requests.Requests()._asked
    with pytest.raises(SignalException):
        asked(signal.SIGTERM, None)
    now[0] += ECHO
    asked(signal.SIGTERM, None)
    now[0] += 0.01
    with pytest.raises(SignalException):
        asked(signal.SIGINT, None)


def test_no_grace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="grace=0"):
        plan(Target(str(LIGHT)), {"processes": 2, "device": "cpu"}, grace=0)
