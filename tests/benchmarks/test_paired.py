"""Paired timing compares what ran side by side, and the benchmarks that use it run to their end."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paired import compare, interleave, pooled

ROOT = Path(__file__).parents[2]


class Clock:
    """Tells the time that the steps say they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def step(self, seconds: float, ran: list[str], name: str) -> Any:
        def step() -> None:
            assert not gc.isenabled() or len(ran) < 4  # the warm-up alone may collect
            ran.append(name)
            self.now += seconds

        return step


def test_every_contender_has_its_turn_in_each_round_and_the_order_changes() -> None:
    clock, ran, waits = Clock(), list[str](), list[str]()
    steps = {"a": clock.step(1.0, ran, "a"), "b": clock.step(2.0, ran, "b")}
    times = interleave(steps, 50, 3, warm_up=2, before=lambda: waits.append("w"), clock=lambda: clock.now)
    assert gc.isenabled()
    assert times == {"a": [1.0] * 50, "b": [2.0] * 50}
    assert len(waits) == 100
    assert ran[:4] == ["a", "a", "b", "b"]
    turns = [tuple(ran[at : at + 3]) for at in range(4, len(ran), 3)]
    orders = Counter(zip(turns[::2], turns[1::2], strict=True))
    assert set(orders) == {(("a",) * 3, ("b",) * 3), (("b",) * 3, ("a",) * 3)}
    assert min(orders.values()) > 10


def test_a_ratio_is_of_the_same_round() -> None:
    drift = [random.Random(0).uniform(1, 10) for _ in range(101)]
    found = compare({"hand": drift, "other": [1.25 * each for each in drift]}, "hand")
    assert (found["other"].low, found["other"].ratio, found["other"].high) == pytest.approx((1.25, 1.25, 1.25))
    assert found["hand"].ratio == 1.0


def test_the_interval_holds_the_median_nineteen_times_in_twenty() -> None:
    chance, held = random.Random(1), 0
    for _ in range(400):
        ratios = [chance.lognormvariate(0, 0.3) for _ in range(60)]  # whose median is 1
        one = compare({"hand": [1.0] * 60, "other": ratios}, "hand")["other"]
        held += one.low <= 1 <= one.high
    assert 0.92 < held / 400 < 0.985


def test_a_turn_of_several_ranks_is_their_mean() -> None:
    assert pooled([{"a": [1.0, 2.0]}, {"a": [3.0, 6.0]}]) == {"a": [2.0, 4.0]}


def test_overhead_compares_every_contender_with_the_hand_written_loop(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "overhead.py"),
        "--rounds",
        "3",
        "--per-turn",
        "1",
        "--json",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    measured = {(loop["loop"], loop["processes"]) for loop in found["loops"]}
    assert measured == {(name, n) for name in ("plain", "accumulate 4, clip") for n in (1, 2)}
    names = {"by hand", "by hand, again", "Session", "Session, resumable", "Stoke's verbs", "Accelerator"}
    for loop in found["loops"]:
        assert names <= set(loop["contenders"])
        assert loop["contenders"]["by hand"]["ratio"] == 1.0
    assert found["bounds"] == {"Session": 1.03, "Session, resumable": 1.03, "Stoke's verbs": 1.05, "Accelerator": 1.05}
    assert {"cpu", "cores", "torch"} <= set(found["machine"])
    assert done.stdout.count("Stoke's verbs") == 4
