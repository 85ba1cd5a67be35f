"""Out of what each rank left behind, the one that failed first."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from restoke.launch.blame import verdict
from restoke.launch.records import Record
from restoke.launch.watch import End

KILL, ABORT, TERM = -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM
ECHO = "RuntimeError: [gloo/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1"


def raised(rank: int, at: int, *chain: str, **more: Any) -> End:
    record = Record(rank=rank, phase="failed", code=1, error=(chain or ("E",))[0], chain=chain or ("E",), monotonic_ns=at)
    return End(rank=rank, record=record, **({"code": 1, "alive_ns": at, "gone_ns": at + 20} | more))


def vanished(rank: int, code: int, alive: int, gone: int, **more: Any) -> End:
    return End(rank=rank, record=Record(rank=rank), code=code, alive_ns=alive, gone_ns=gone, **more)


def finished(rank: int, at: int) -> End:
    return End(rank=rank, record=Record(rank=rank, phase="finished", monotonic_ns=at), code=0, alive_ns=at, gone_ns=at + 20)


FIRST = {
    "the earlier of two exceptions": ([raised(0, 9), raised(1, 5)], 1),
    "an exception before its earlier echo": ([raised(0, 4, ECHO), raised(1, 5)], 1),
    "an echo in the cause of an exception is an echo": ([raised(0, 4, "MyError: no step", ECHO), raised(1, 5)], 1),
    "a killed rank before its echo": ([raised(0, 4, ECHO), vanished(1, KILL, 3, 9)], 1),
    "a killed rank before what was raised since it was last seen": ([raised(0, 7), vanished(1, KILL, 6, 60)], 1),
    "an exception before a rank that was still alive then": ([raised(0, 7), vanished(1, KILL, 30, 60)], 0),
    "a silent exit code": ([vanished(0, 3, 5, 9), vanished(1, TERM, 20, 30)], 0),
    "an abort before the reset that it causes": ([raised(0, 7, "E: Connection reset by peer"), vanished(1, ABORT, 6, 60)], 1),
    "an exception before the abort that it may cause": ([raised(0, 7), vanished(1, ABORT, 6, 60)], 0),
    "a rank that the launcher had to kill is no culprit": ([vanished(0, KILL, 1, 99, killed=True), raised(1, 50)], 1),
    "a rank that somebody terminated": ([vanished(0, TERM, 40, 60), vanished(1, TERM, 5, 10)], 1),
    "a terminated rank before its echo": ([raised(0, 12, ECHO, alive_ns=30), vanished(1, TERM, 5, 10)], 1),
    "an echo alone": ([raised(0, 12, ECHO), vanished(1, TERM, 5, 40)], 0),
    "an exception of a rank whose process was reaped unseen": ([raised(0, 7, code=None), finished(1, 9)], 0),
}


@pytest.mark.parametrize(("ends", "first"), FIRST.values(), ids=FIRST)
def test_first_is(ends: list[End], first: int) -> None:
    for order in (ends, ends[::-1]):
        found = verdict(order)
        assert found is not None
        assert (found.first.rank, found.named.rank) == (first, first)


def test_a_rank_that_left_before_an_echo_is_named() -> None:
    found = verdict([raised(0, 9, ECHO), finished(1, 5), finished(2, 4)])
    assert found is not None
    assert (found.first.rank, found.named.rank, found.code) == (0, 2, 1)


def test_a_rank_that_left_before_a_fault_of_its_own_is_not_named() -> None:
    found = verdict([raised(0, 9), finished(1, 5)])
    assert found is not None
    assert found.named.rank == 0


def test_no_failure_is_no_verdict() -> None:
    assert verdict([finished(0, 5), End(rank=1, record=Record(rank=1, phase="finished"))]) is None


@pytest.mark.parametrize(("code", "exits"), [(3, 3), (KILL, 137), (ABORT, 134), (TERM, 143)])
def test_the_exit_code_is_the_ranks_own_or_its_signals(code: int, exits: int) -> None:
    found = verdict([vanished(0, code, 1, 2)])
    assert found is not None
    assert found.code == exits


def test_ranks_that_the_agent_terminated_are_not_listed_as_failures() -> None:
    found = verdict([raised(0, 9), vanished(1, TERM, 20, 30), raised(2, 12, ECHO)])
    assert found is not None
    assert [end.rank for end in found.after] == [2]
