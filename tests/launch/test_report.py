"""What a user reads when a job failed."""

from __future__ import annotations

import signal
from pathlib import Path

from restoke.launch.blame import Verdict
from restoke.launch.records import Record, log_of
from restoke.launch.report import TAIL, WIDTH, report
from restoke.launch.watch import End

TRACE = "Traceback (most recent call last):\nValueError: no\n"


def failed(rank: int, error: str = "ValueError: no", traceback: str = TRACE) -> End:
    return End(
        rank=rank, record=Record(rank=rank, phase="failed", code=1, error=error, chain=(error,), traceback=traceback), code=1
    )


def test_the_summary_comes_first_then_the_traceback_then_the_log(tmp_path: Path) -> None:
    log_of(tmp_path, 1).write_text("step 1\n[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: no\nbye\n")
    lines = report(Verdict(failed(1), (failed(2, "OSError: x"),)), tmp_path).splitlines()
    assert lines == [
        "restoke: rank 1 failed first: ValueError: no",
        *TRACE.splitlines(),
        "Then rank 2 failed: OSError: x",
        "Last output of rank 1:",
        "  step 1",
        "  bye",
        f"Output of every rank: {tmp_path}/rank-*.log",
    ]


def test_only_the_end_of_a_long_log_is_shown(tmp_path: Path) -> None:
    log_of(tmp_path, 1).write_text("".join(f"line {n}\n" for n in range(50_000)))
    shown = report(Verdict(failed(1)), tmp_path).splitlines()
    assert shown[-TAIL - 2] == "Last output of rank 1:"
    assert shown[-TAIL - 1 : -1] == [f"  line {n}" for n in range(50_000 - TAIL, 50_000)]


def test_the_main_ranks_output_was_on_the_screen_already(tmp_path: Path) -> None:
    log_of(tmp_path, 0).write_text("step 1\n")
    assert "step 1" not in report(Verdict(failed(0)), tmp_path)


def test_how_a_process_ended_is_said_in_words(tmp_path: Path) -> None:
    def first_line(end: End) -> str:
        return report(Verdict(end), tmp_path).splitlines()[0].removeprefix("restoke: rank 0 failed first: ")

    assert first_line(End(rank=0, record=Record(rank=0), code=-signal.SIGSEGV)) == "it was killed by SIGSEGV"
    assert first_line(End(rank=0, record=Record(rank=0), code=-50)) == "it was killed by signal 50"
    assert first_line(End(rank=0, record=Record(rank=0), code=3)) == "it exited with code 3, without an exception"
    assert first_line(End(rank=0, code=1)) == "it exited with code 1, before its script began"
    long = first_line(failed(0, "RuntimeError: [/a/pair.cc:5] Connection closed by peer " + "x" * WIDTH))
    assert long.startswith("RuntimeError: Connection closed")
    assert long.endswith("x...")
    assert len(long) == WIDTH


def test_an_echo_on_one_of_several_nodes_points_to_the_others(tmp_path: Path) -> None:
    echo = failed(0, "RuntimeError: Connection closed by peer")
    assert "on another node" in report(Verdict(echo), tmp_path, nodes=2)
    assert "on another node" not in report(Verdict(echo), tmp_path)
    assert "on another node" not in report(Verdict(failed(0)), tmp_path, nodes=2)
