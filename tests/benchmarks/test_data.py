"""The benchmark of loaders runs to its end, and compares every loader with torch's on batches of a millisecond."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_compares_every_loader_with_torchs(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    script = str(ROOT / "benchmarks" / "data.py")
    command = [sys.executable, script, "--rounds", "3", "--per-turn", "2", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert [(place["processes"], place["workers"]) for place in found["places"]] == [(1, 0), (1, 2), (2, 0)]
    for place in found["places"]:
        contenders = place["contenders"]
        assert {"torch", "torch, again", "restoke, made", "restoke, taken"} <= set(contenders)
        assert contenders["torch"]["ratio"] == 1.0
        for rate in contenders.values():
            assert rate["low"] <= rate["ratio"] <= rate["high"]
        assert place["workers"] or contenders["torch"]["batches"] < 1000
    assert found["bounds"] == {"restoke, made": 0.97, "restoke, taken": 0.97}
    assert done.stdout.count("restoke, taken") == 3
