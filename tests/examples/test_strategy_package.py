"""The example package brings its strategy by being installed: it keeps the contract, and is declared like any other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, FEW, LOSS, Ran, launch, run

PACKAGE = EXAMPLES / "strategy_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in it, as pip leaves it."""
    target = tmp_path_factory.mktemp("installed")
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--target", target]
    subprocess.run([sys.executable, "-m", "pip", "install", *map(str, words), str(PACKAGE)], check=True, timeout=100)
    return target


def test_the_table_has_it_and_imports_no_torch_for_it(installed: Path, tmp_path: Path) -> None:
    code = "import sys; from restoke.table import rows; row = rows()['averaged']"
    told = run(tmp_path, "-c", f"{code}; print(row.package, row.summary, 'torch' in sys.modules)", path=installed).text
    assert told.startswith("restoke-averaged Every process holds the whole model;")
    assert told.endswith("False\n")


def test_flags_and_settings_know_it(installed: Path, tmp_path: Path) -> None:
    check = ("-m", "restoke.cli", "check", "--strategy", "averaged", "--processes", 2)
    assert "reduce: bfloat16" in run(tmp_path, *check, "--set", "averaged.reduce=bfloat16", path=installed).text
    for setting, why in (
        ("averaged.reduce=float16", r"the sum of the ranks' gradients would overflow"),
        ("averaged.reduc=bfloat16", "did you mean 'reduce'"),
    ):
        with pytest.raises(AssertionError, match=why):
            run(tmp_path, *check, "--set", setting, path=installed)


def test_an_example_trains_under_it_as_under_ddp(installed: Path, tmp_path: Path, digits: Callable[[str], Ran]) -> None:
    spec = tmp_path / "averaged.yaml"
    spec.write_text("strategy: averaged\ndevice: cpu\nprocesses: 2\n")
    averaged = launch(tmp_path, str(spec), "digits/train.py", *FEW, "--epochs", 1, "--batch-size", 16, path=installed)
    assert averaged.numbers(LOSS) == pytest.approx(digits("ddp").numbers(LOSS)[:1], abs=5e-3)
    assert "Distributed backend: averaged" in averaged.text


def test_it_keeps_the_contract(installed: Path, tmp_path: Path) -> None:
    ran = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", PACKAGE / "tests", path=installed)
    assert "passed" in ran.text.splitlines()[-1]
    assert "skipped" not in ran.text.splitlines()[-1]
