"""scripts/test runs every stage, hides no failure, and passes on what it is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ["-m ruff check .", "-m ruff format --check .", "-m mypy", "-m pytest --durations=10"]
# Stands in for the interpreter: notes how it was called, and fails where it is told to.
STAND_IN = """#!/bin/sh
echo "$*|$RESTOKE_TEST_FULL" >>"$NOTES"
case "$*" in "$FAILING"*) exit 3 ;; esac
"""


def scripts_test(folder: Path, *arguments: str, failing: str = "nothing") -> tuple[int, list[str], str]:
    """Its exit code, the calls of the interpreter, and what it printed."""
    python, notes = folder / "python", folder / "notes"
    python.write_text(STAND_IN, encoding="utf-8")
    python.chmod(0o755)
    environ = os.environ | {"RESTOKE_PYTHON": str(python), "NOTES": str(notes), "FAILING": failing}
    ran = subprocess.run(["bash", ROOT / "scripts/test", *arguments], env=environ, capture_output=True, text=True)
    calls = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return ran.returncode, calls, ran.stdout + ran.stderr


def test_all_stages_run_and_their_times_are_printed(tmp_path: Path) -> None:
    code, calls, printed = scripts_test(tmp_path)
    assert (code, calls) == (0, [f"{stage}|" for stage in STAGES])
    assert printed.splitlines()[-1].startswith("== setup 0 s, ruff check ")


@pytest.mark.parametrize("stage", STAGES)
def test_one_failing_stage_fails_the_run_and_hides_none_of_the_others(stage: str, tmp_path: Path) -> None:
    code, calls, printed = scripts_test(tmp_path, failing=stage)
    assert (code, calls) == (1, [f"{stage}|" for stage in STAGES])
    assert printed.splitlines()[-1].split(": ")[1] in stage


def test_arguments_go_to_pytest(tmp_path: Path) -> None:
    _, calls, _ = scripts_test(tmp_path, "-k", "two words")
    assert calls[-1] == f"{STAGES[-1]} -k two words|"


def test_full_asks_for_the_whole_product(tmp_path: Path) -> None:
    _, calls, _ = scripts_test(tmp_path, "--full", "-x")
    assert calls == [*(f"{stage}|1" for stage in STAGES[:-1]), f"{STAGES[-1]} -x|1"]


def test_gpu_runs_only_what_needs_one(tmp_path: Path) -> None:
    code, calls, _ = scripts_test(tmp_path, "--gpu", failing="-m pytest")
    assert (code, calls) == (1, [f"{STAGES[-1]} -m gpu|"])


def test_help_runs_nothing(tmp_path: Path) -> None:
    code, calls, printed = scripts_test(tmp_path, "--help")
    assert (code, calls) == (0, [])
    assert "scripts/test [--full | --gpu]" in printed


def test_continuous_integration_runs_scripts_test_and_passes_its_verdict_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    environ = os.environ | {"RESTOKE_PYTHON": str(python)}
    ran = subprocess.run(["bash", ROOT / ".ci/run"], env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr == "== FAILED: ruff check, ruff format, mypy, pytest\n"
