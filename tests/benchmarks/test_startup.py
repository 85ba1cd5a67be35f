"""Start-up is judged by what it adds to the same work in bare PyTorch."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as it sees itself: its folder is on the path."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("startup")


def test_what_is_added_is_the_difference_of_the_least_times(startup: ModuleType) -> None:
    times = {name: [2.0, 5.0, 3.0] for name in startup.PROBES}
    times["Session, single"] = [9.0, 2.08, 3.0]
    times["Stoke, single"] = [2.11, 2.2, 2.3]
    times["restoke --help"] = [0.2, 0.3, 0.3]
    rows = {row["name"]: row for row in startup.judged(times)}
    assert rows["Session, single"]["adds"] == pytest.approx(0.08)
    assert (rows["Session, single"]["share"], rows["Session, single"]["median"]) == pytest.approx((0.04, 3.0))
    met = {name: row["met"] for name, row in rows.items() if "met" in row}
    assert met["Session, single"]
    assert not met["Stoke, single"]
    assert met["restoke --help"]
    assert not met["restoke launch --help"]
    assert rows["python"].keys() == {"name", "min", "median", "over"}


def test_a_process_is_charged_with_its_own_time_and_its_failure_is_told(startup: ModuleType) -> None:
    spin = "import time; end = time.process_time() + 0.3; [0 for _ in iter(lambda: time.process_time() < end, False)]"
    assert 0.3 <= startup.cpu_seconds([sys.executable, "-c", spin]) < 1.0
    assert startup.cpu_seconds([sys.executable, "-c", "import time; time.sleep(0.3)"]) < 0.3
    with pytest.raises(subprocess.CalledProcessError) as failed:
        startup.cpu_seconds([sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert failed.value.stderr == "no such thing\n"


def test_every_probe_is_over_another(startup: ModuleType) -> None:
    assert {probe.over for probe in startup.PROBES.values()} <= {"", *startup.PROBES}
