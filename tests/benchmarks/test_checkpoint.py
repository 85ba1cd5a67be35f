"""The benchmark of checkpoints runs to its end, and judges throughputs and times each in their own way."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as it sees itself: its folder is on the path."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "checkpoint", raising=False)
    return importlib.import_module("checkpoint")


def test_a_bound_on_throughput_is_met_from_above_and_one_on_time_from_below(bench: ModuleType) -> None:
    times = {"restoke": [2.0] * 9, "torch": [1.7] * 9, "plain copy": [1.0] * 9}
    for name, ratio, met in (("save", 0.85, False), ("load", 0.85, True), ("stall", 2.0, False)):
        figures = bench.judged(bench.MEASURES[name], times)
        assert figures["restoke"]["ratio"] == pytest.approx(ratio)
        assert figures["restoke"]["met"] is met
        assert figures[bench.MEASURES[name].reference]["ratio"] == 1.0


def test_a_turn_lasts_until_the_slowest_rank_is_done(bench: ModuleType) -> None:
    measured = [{"save": {"a": [1.0, 5.0]}}, {"save": {"a": [2.0, 3.0]}}]
    assert bench.slowest(measured) == {"save": {"a": [2.0, 5.0]}}


def test_the_state_is_of_the_size_that_was_asked_for(bench: ModuleType) -> None:
    for size in (4_000_000, 1_000_000_000):
        assert sum(4 * rows * width for rows, width in bench.shapes(size).values()) == pytest.approx(size, rel=0.02)


def test_checkpoints_are_measured_on_one_rank_and_on_two(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    script = str(ROOT / "benchmarks" / "checkpoint.py")
    command = [sys.executable, script, "--rounds", "2", "--megabytes", "2", "--folder", str(tmp_path), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    measured = {(run["measure"], run["processes"]) for run in found["runs"]}
    assert measured == {(name, n) for name in ("save", "load", "stall") for n in (1, 2)}
    for run in found["runs"]:
        assert all(len(times) == 2 for times in run["seconds"].values())
        assert run["contenders"]["restoke"]["bound"] == {"save": 0.9, "load": 0.8, "stall": 1.5}[run["measure"]]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
