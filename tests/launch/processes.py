"""Jobs of two real ranks under the agent, run in the test's own process, and proof that nothing of them is left."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import frozen

from restoke.launch.job import Job, Target
from restoke.launch.records import read
from restoke.spec import Spec

WAYS = Path(__file__).with_name("ways_to_end.py")
MARK = "TEST_JOB_MARK"


@frozen
class Ran:
    """How a job ended: exit code, the lines on its two streams, the folder of its logs.

    `seconds` is the time from the last thing that a rank recorded, its failure or else its beginning, to the end of the job.
    """

    code: int
    out: list[str]
    err: list[str]
    logs: Path
    seconds: float

    def log(self, rank: int) -> str:
        return (self.logs / f"rank-{rank}.log").read_text()


def marked(mark: str) -> list[int]:
    """The processes that were started with this mark in their environment and are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Everything that the test starts carries it, and must be gone a moment after the test's end."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    assert_gone(value)


def assert_gone(mark: str, within: float = 2.0) -> None:
    end = time.monotonic() + within
    while left := marked(mark):
        assert time.monotonic() < end, f"processes left behind: {left}"
        time.sleep(0.02)


@pytest.fixture
def run(mark: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a case of `ways_to_end.py` on two ranks."""
    from restoke.launch.agent import run as run_job

    def run(case: str, **changes: object) -> Ran:
        target = Target(str(WAYS), (case, str(tmp_path)))
        code = run_job(Job(target=target, spec=Spec(), processes=2, agent=True, logs=tmp_path / "logs", **changes))
        ended = time.monotonic_ns()
        (logs,) = (tmp_path / "logs").iterdir()
        last = max(record.monotonic_ns for rank in range(2) if (record := read(logs, rank)))
        shown = capfd.readouterr()
        return Ran(code, shown.out.splitlines(), shown.err.splitlines(), logs, (ended - last) / 1e9)

    return run
