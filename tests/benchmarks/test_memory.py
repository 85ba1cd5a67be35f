"""The benchmark of memory compares every strategy with its formula, and can fail."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from restoke.held import Held
from restoke.table import rows, usable

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as it sees itself: its folder is on the path."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("memory")


def test_the_model_has_fifty_million_parameters(memory: ModuleType) -> None:
    import torch

    with torch.device("meta"):
        count = sum(p.numel() for p in memory.Transformer(1).parameters())
    assert count == pytest.approx(50e6, rel=0.01)


def test_the_error_is_of_the_class_furthest_off(memory: ModuleType) -> None:
    due = Held(parameters=1000, gradients=1000, optimizer=2000)
    assert memory.error(due, due) == 0
    assert memory.error(Held(parameters=1000, gradients=1100, optimizer=1900), due) == pytest.approx(0.1)
    assert memory.error(Held(parameters=1000, gradients=1000, optimizer=2000, buckets=40), due) == pytest.approx(0.01)


def test_it_runs_every_strategy_and_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, str(FOLDER / "memory.py"), "--ranks", "2", "--steps", "2", "--scale", "32", "--json", str(file)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    points = json.loads(file.read_text(encoding="utf-8"))["points"]
    assert [point["strategy"] for point in points] == [name for name in usable() if rows()[name].memory is not None]
    assert {moment["error"] for point in points for moment in point["moments"].values()} == {0.0}
