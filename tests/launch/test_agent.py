"""Real ranks die in every way, and the launcher names the one that failed first, ends the others and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from restoke.errors import LaunchError
from restoke.launch.agent import run as run_job
from restoke.launch.job import Job, Nodes, Target
from restoke.spec import Spec
from tests.launch.processes import WAYS, Ran

Run = Callable[..., Ran]
QUICK = 5.0  # seconds for the others to end: their grace is 2

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_an_exception_is_named_with_its_traceback_and_the_ranks_last_output(run: Run) -> None:
    ran = run("raises")
    assert ran.code == 1
    assert ran.err[0] == "restoke: rank 1 failed first: ValueError: the second rank's own fault"
    assert ran.err[1] == "Traceback (most recent call last):"
    assert "ways_to_end.py" in ran.err[2]  # the script's own frames only
    assert ran.err[-3:-1] == ["Last output of rank 1:", "  rank 1 began"]
    assert ran.err[-1] == f"Output of every rank: {ran.logs}/rank-*.log"
    assert ran.out == ["rank 0 began"]
    assert ran.log(1).splitlines()[:2] == ["rank 1 began", "Traceback (most recent call last):"]
    assert "Then" not in "".join(ran.err)
    assert ran.seconds < QUICK


def test_the_echo_in_another_rank_is_not_blamed_and_no_traceback_is_shown_twice(run: Run) -> None:
    ran = run("raises_in_a_collective")
    assert ran.err[0] == "restoke: rank 1 failed first: ValueError: not the echo"
    assert (ran.code, ran.out) == (1, [])
    assert sum("Traceback" in line for line in ran.err) == 1
    assert ran.seconds < QUICK


@pytest.mark.parametrize(
    ("case", "code", "first_line"),
    [
        ("vanishes", 3, "rank 0 failed first: it exited with code 3, without an exception"),
        ("says_exit", 1, "rank 1 failed first: sys.exit('no data here')"),
        ("is_killed", 128 + signal.SIGKILL, "rank 1 failed first: it was killed by SIGKILL"),
        ("stops", 1, "rank 0 failed first: ValueError: rank 0 was first"),
        ("is_deaf", 1, "rank 1 failed first: ValueError: only rank 1 says so"),
        ("hangs_at_exit", 1, "rank 1 failed first: ValueError: before the handler"),
    ],
)
def test_the_rank_that_failed_first_is_named(run: Run, case: str, code: int, first_line: str) -> None:
    ran = run(case)
    assert ran.err[0] == f"restoke: {first_line}"
    assert ran.code == code
    assert ran.seconds < QUICK


def test_a_rank_that_left_early_is_named_when_the_others_fail_for_it(run: Run) -> None:
    ran = run("leaves_early")
    assert ran.err[0].startswith("restoke: rank 1 finished (exit code 0) while rank 0 still waited for it, which then failed: ")
    assert "closed by peer" in ran.err[0] or "reset by peer" in ran.err[0]
    assert ran.code == 1
    assert ran.seconds < QUICK


def test_a_job_that_succeeds_shows_the_main_rank_and_logs_every_rank(run: Run) -> None:
    before = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    ran = run("talk")
    assert (ran.code, ran.out, ran.err) == (0, ["out of rank 0"], ["error of rank 0"])
    assert ran.log(0) == "out of rank 0\nerror of rank 0\n"
    assert ran.log(1) == "out of rank 1\nerror of rank 1\n"
    assert (dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_cores_are_shared_out_and_it_is_said_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // 2)
    ran = run("threads")
    assert ran.err == [f"restoke: OMP_NUM_THREADS={share} ({cores} cores, 2 processes); set it to choose"]
    assert ran.out == [str(share)]
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_port_in_use_is_refused_with_its_name(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        job = Job(
            target=Target(str(WAYS)), spec=Spec(), processes=2, agent=True, nodes=Nodes(count=2, endpoint=where), logs=tmp_path
        )
        with pytest.raises(LaunchError, match=f"rdzv-endpoint='{where}'"):
            run_job(job)


def test_ranks_find_each_other_and_leave_without_hanging(run: Run) -> None:
    ran = run("trains")
    assert (ran.code, ran.out) == (0, ["rank 0 has reduced"])
