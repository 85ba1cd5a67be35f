"""`--memory` measures a script that knows nothing of it, shows the table at the end, and changes nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from restoke.launch.measured import measured, path_of, shown
from restoke.memory.records import RankMemory
from restoke.prepared import TOLD

SCRIPT = """
import sys
import torch
from restoke import OptimizerSpec, Session

session = Session(device="cpu", seed=0)
session.prepare(torch.nn.Linear(64, 32), OptimizerSpec(torch.optim.Adam))
for _ in range(3):
    session.backward(session.forward(torch.ones(8, 64)).sum())
    session.step()
print("trained")
sys.exit(int(sys.argv[1]))
"""
PARAMETERS = "8.1 KiB"  # (64 x 32 + 32) x 4


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def launch(*flags: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "restoke", "launch", *flags, str(script), str(code)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    return launch


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if f"│ {name} " in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


def test_one_process_shows_its_table_after_the_script_s_own_output(
    launch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ran = launch("--memory")
    assert (ran.returncode, ran.stdout) == (0, "trained\n")
    assert row(ran.stderr, "parameters") == [PARAMETERS] * 4
    assert row(ran.stderr, "gradients") == ["-", PARAMETERS, PARAMETERS, PARAMETERS]
    assert "single on cpu" in ran.stderr


def test_of_two_ranks_the_mean_is_shown_also_where_they_fail(launch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    ran = launch("--memory", "--processes", "2", "--strategy", "zero1", code=3)
    assert (ran.returncode, ran.stdout) == (3, "trained\n")
    assert "zero1 on cpu, mean of 2 ranks" in ran.stderr
    assert row(ran.stderr, "optimizer") == [PARAMETERS] * 4
    assert "less than under DDP" in ran.stderr


def test_without_the_flag_nothing_is_shown(launch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert launch().stderr == ""


def trained() -> None:
    from tests.memory.training import session, train

    train(session(), 2)


def trained_in_vain() -> None:
    trained()
    raise ZeroDivisionError


def test_a_rank_leaves_its_figures_for_the_parent(tmp_path: Path) -> None:
    before = list(TOLD)
    with measured(tmp_path, 1):
        trained()
    left = RankMemory.of(json.loads(path_of(tmp_path, 1).read_text(encoding="utf-8")))
    assert left.epochs[-1].held["after the step"].parameters == 104
    assert "single on cpu" in shown(tmp_path, range(2))
    assert before == TOLD


def test_a_script_that_prepares_nothing_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with measured(None, 0):
        pass
    assert "no session was prepared" in capsys.readouterr().err
    assert "no session was prepared" in shown(tmp_path, range(2))


def test_figures_that_cannot_be_written_do_not_change_how_the_script_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), measured(tmp_path / "gone", 0):
        trained_in_vain()
    assert "--memory: " in capsys.readouterr().err
