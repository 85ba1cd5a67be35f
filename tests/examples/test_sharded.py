"""The examples of layers that ranks share train as the ones that each rank has whole, and go on at another number of ranks."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from restoke.testing import ranks
from tests.examples.running import EXAMPLES, run

IMAGES = ("--classes", 30, "--samples", 240, "--epochs", 2, "--batch-size", 24)
WORDS = ("--words", 501, "--rows", 64, "--epochs", 1, "--width", 16, "--layers", 1)


def printed(folder: str, name: str, words: list[str]) -> str:
    """What the example prints, with these arguments, in this folder."""
    out, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with patch.object(sys, "argv", [name, *words]), contextlib.redirect_stdout(out):
            importlib.import_module(f"examples.{name}").main()
    finally:
        os.chdir(before)
    return out.getvalue()


def example(n: int, folder: Path, name: str, *words: object) -> str:
    first, *others = ranks.run(n, printed, str(folder), name, [str(word) for word in words])
    assert not any(others)
    return str(first)


def epochs(text: str) -> list[float]:
    return [
        float(found)
        for line in re.findall(r"^(?:epoch|test).*$", text, re.MULTILINE)
        for found in re.findall(r"\d+\.\d+", line)
    ]


@pytest.mark.parametrize("dim", [0, 1])
def test_classes_over_two_ranks_are_learned_as_on_each_of_them(dim: int, tmp_path: Path) -> None:
    whole = example(2, tmp_path, "imagenet_classes", "--head", "whole", *IMAGES)
    shared = example(2, tmp_path, "imagenet_classes", "--dim", dim, *IMAGES)
    assert "head: 7710 of 7710 weights" in whole
    assert f"head: {3870 if dim == 0 else 3855} of 7710 weights" in shared
    assert len(epochs(whole)) == 9
    assert epochs(shared) == pytest.approx(epochs(whole), abs=2e-3)
    assert epochs(whole)[3] < epochs(whole)[0]


def test_classes_saved_on_two_ranks_go_on_in_one_process_as_if_never_stopped(tmp_path: Path) -> None:
    through = example(2, tmp_path / "..", "imagenet_classes", *IMAGES)
    example(2, tmp_path, "imagenet_classes", *IMAGES, "--epochs", 1)
    resumed = example(1, tmp_path, "imagenet_classes", *IMAGES, "--resume")
    assert "head: 7710 of 7710 weights" in resumed
    assert epochs(resumed) == pytest.approx(epochs(through)[3:], abs=2e-3)


def test_a_gpt_with_its_words_over_two_ranks_learns_as_with_all_of_them_on_each(tmp_path: Path) -> None:
    whole = example(2, tmp_path, "sharded_gpt", "--head", "whole", *WORDS)
    shared = example(2, tmp_path, "sharded_gpt", *WORDS)
    assert "table: 501 of 501 words" in whole
    assert "table: 251 of 501 words" in shared
    assert epochs(shared) == pytest.approx(epochs(whole), abs=1e-3)
    assert shared.splitlines()[2:] == whole.splitlines()[2:]  # what it writes


@pytest.mark.parametrize("name", ["imagenet_classes", "sharded_gpt"])
def test_they_tell_what_they_take(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(sys, "argv", [name, "--help"]), pytest.raises(SystemExit, match="0"):
        importlib.import_module(f"examples.{name}").main()
    assert "--head {sharded,whole}" in capsys.readouterr().out


def test_they_run_as_launched(tmp_path: Path) -> None:
    launch = ("-m", "restoke.cli", "launch", "--processes", 2)
    words = ("--classes", 20, "--samples", 64, "--epochs", 1)
    text = run(tmp_path, *launch, EXAMPLES / "imagenet_classes.py", *words).text
    assert "head: 2570 of 5140 weights on this rank" in text
    assert (tmp_path / ".restoke" / "imagenet_classes" / "step-2").is_dir()
