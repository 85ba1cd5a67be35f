"""Start-up is judged by restoke's part of a process that has done the same in bare PyTorch."""

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


def test_bounds_are_on_the_least_times(startup: ModuleType) -> None:
    times = {name: [2.0, 5.0, 3.0] for name in startup.PROBES} | {"restoke --help": [0.2, 0.3, 0.3]}
    parts = {name: [0.2, 0.11, 0.3] for name, probe in startup.PROBES.items() if probe.after}
    parts["Session, single"] = [9.0, 0.08, 3.0]
    rows = {row["name"]: row for row in startup.judged(times, parts)}
    assert rows["Session, single"]["share"] == pytest.approx(0.04)
    assert rows["Session, single"]["part_median"] == 3.0
    met = {name for name, row in rows.items() if row.get("met")}
    assert met == {"Session, single", "restoke --help"}
    assert {name for name, row in rows.items() if "met" in row} == {*parts, "restoke --help", "restoke launch --help"}
    assert rows["python"] == {"name": "python", "min": 2.0, "median": 3.0}


def test_a_process_is_charged_with_its_own_time_and_its_failure_is_told(startup: ModuleType) -> None:
    spin = "import time; end = time.process_time() + 0.3; [0 for _ in iter(lambda: time.process_time() < end, False)]"
    assert 0.3 <= startup.cpu_seconds([sys.executable, "-c", spin])[0] < 1.0
    seconds, said = startup.cpu_seconds([sys.executable, "-c", "import time; time.sleep(0.3); print('well')"])
    assert seconds < 0.3
    assert said == "well\n"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        startup.cpu_seconds([sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert failed.value.stderr == "no such thing\n"


def test_restokes_part_is_what_comes_after_the_bare_one(startup: ModuleType) -> None:
    probe = startup.Probe("sum(range(10**6))", after="import json; sum(range(10**7))")
    seconds, said = startup.cpu_seconds(probe.words)
    assert 0 < float(said) < seconds / 3
