"""The benchmark of many classes measures what it says, and can fail."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import attrs
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts as they see themselves: their folder is on the path."""
    monkeypatch.syspath_prepend(FOLDER)
    return {name: importlib.import_module(name) for name in ("classes", "class_model", "class_drawing", "paired")}


def test_the_model_has_all_published_points_within_what_it_says(named: dict[str, ModuleType]) -> None:
    model = named["class_model"]
    fits = list(model.fits())
    assert len(fits) == 41
    assert max(abs(fit.error) for fit in fits) < model.FIT
    assert model.FORMULAS["dim 0"](model.Case(1_000_000)) == pytest.approx(10964, abs=1)
    assert model.FORMULAS["restoke"](model.Case(2_000_000)) == pytest.approx(10476, abs=1)
    assert model.FORMULAS["dim 0"](model.Case(2_000_000, 16)) > model.CARD  # as published: it did not fit


def test_a_point_tells_what_is_too_much(named: dict[str, ModuleType]) -> None:
    ratio = named["paired"].Ratio
    fine = {"loss_parallel": ratio(1, 1, 1, 1), "separate": ratio(1, 1.1, 0.9, 1.3), "fused": ratio(1, 1.3, 1.2, 1.4)}
    peak = {"loss_parallel": 110, "separate": 104, "fused": 105}
    point = named["classes"].Point(10, 2, peak, dict.fromkeys(peak, 100), fine)
    assert point.problems == []
    assert "1.060 of what is due" in attrs.evolve(point, peak={**peak, "fused": 106}).problems[0]
    assert "more than loss_parallel" in attrs.evolve(point, peak={**peak, "loss_parallel": 104}).problems[0]
    assert "1.20 of loss_parallel's time" in attrs.evolve(point, time={**fine, "separate": ratio(1, 1.2, 1.1, 1.3)}).problems[0]


def test_it_measures_real_ranks_and_writes_figures(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, str(FOLDER / "classes.py"), "--classes", "4000", "--ranks", "2", "--rounds", "0"]
    command += ["--larger", "1000000", "--json", str(file), "--figures", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [(point["classes"], point["ranks"]) for point in found["points"]] == [(4000, 2), (1_000_000, 8)]
    for point in found["points"]:
        assert point["peak"]["fused"] < point["peak"]["separate"] <= point["peak"]["loss_parallel"]
        assert 0.99 < point["peak"]["fused"] / point["due"]["fused"] < 1.05
    assert found["buffers"]["separate"] == pytest.approx(2, abs=0.05)
    assert found["buffers"]["loss_parallel"] > 3.5
    for name in ("plain", "amp", "zero"):
        assert (tmp_path / f"classes-{name}.svg").read_text(encoding="utf-8").startswith("<svg")
