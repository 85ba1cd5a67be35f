"""An unmodified script of Stoke's, from its first line to its exit, in one process and in two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("training_script.py")
LAUNCH = [sys.executable, "-m", "restoke.cli", "launch", "--as", "stoke"]


@pytest.mark.parametrize(("processes", "amp"), [(1, False), (2, False), (2, True)])
def test_a_script_of_stokes_runs_as_it_is_and_learns(processes: int, amp: bool, tmp_path: Path) -> None:
    flags = [*["--ddp"] * (processes > 1), *["--amp"] * amp]
    command = [*LAUNCH, "--processes", str(processes), str(SCRIPT), str(tmp_path / "run"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.partition("Stoke -- ")[2] for line in done.stdout.splitlines() if "Stoke -- " in line]
    micro_batches = 512 // 16 // processes * 4
    assert told[0] == "STOKE STATE:"
    assert f"saved stoke-script-backward-step-{micro_batches} after {32 * processes}, scaler {amp}" in told
    assert "Total Trainable Model Parameters: 0.420 THOUSAND" in told
    assert sum(line.startswith("Mean Accumulated & Synced Loss: ") for line in told) == micro_batches // 2
    assert sum(line.startswith("Epoch 0 Step 0 -- EMA Loss: ") for line in told) == 1
    logs = [path.read_text() for path in tmp_path.glob(".restoke/logs/*/rank-*.log")] or [done.stdout]  # rank 0's is shown
    assert len(logs) == processes
    for log in logs:
        accuracies = [line.split()[3] for line in log.splitlines() if line.startswith("Stoke -- accuracy")]
        assert len(accuracies) == 4
        assert float(accuracies[-1]) > 0.8
