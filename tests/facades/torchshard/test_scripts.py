"""Scripts in the shape of TorchShard's tutorials run as they are, and train as DDP does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.facades.torchshard.scripting import SCRIPTS, script
from tests.ranks import RankError


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.\d+(?:e-?\d+)?", text)]


def apart(first: Path, second: Path) -> float:
    """The largest difference between two states of the same names."""
    one, other = (torch.load(path, weights_only=True) for path in (first, second))
    assert list(one) == list(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def imagenet(folder: Path, n: int, name: str, *words: object) -> tuple[list[float], Path, str]:
    ran = script(n, "imagenet", "--save", folder / f"{name}.pt", *words)
    assert all(numbers(out) == pytest.approx(numbers(ran[0][0]), abs=2e-6) for out, _ in ran)
    return numbers(ran[0][0]), folder / f"{name}.pt", ran[0][1]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("classes", [10, 7])
def test_a_head_over_the_ranks_of_ddp_trains_as_ddp_alone(dim: int, classes: int, tmp_path: Path) -> None:
    size = ("--num-classes", classes)
    plain, whole, _ = imagenet(tmp_path, 2, "ddp", *size)
    shared, joined, said = imagenet(tmp_path, 2, "shared", *size, "--enable-model-parallel", "--model-parallel-dim", dim)
    assert len(plain) == 18
    assert shared == pytest.approx(plain, abs=2e-6)
    assert apart(whole, joined) <= 1e-6
    assert said.count("restoke: torchshard: gather(x, dim=0) gives back") == 1
    assert "2 times TorchShard's" in said


def test_its_checkpoints_are_those_of_the_whole_model(tmp_path: Path) -> None:
    _, start, _ = imagenet(tmp_path, 2, "start", "--epochs", 1)
    parallel = ("--enable-model-parallel", "--model-parallel-dim", 1)
    plain, whole, _ = imagenet(tmp_path, 2, "ddp", "--resume", start)
    shared, joined, _ = imagenet(tmp_path, 2, "shared", "--resume", start, *parallel)
    assert shared == pytest.approx(plain, abs=2e-6)
    assert apart(whole, joined) <= 1e-6
    _, again, _ = imagenet(tmp_path, 2, "again", "--resume", joined, "--epochs", 0)
    assert apart(again, joined) == 0


@pytest.mark.parametrize("dim", [0, 1])
def test_mixed_precision_trains_as_under_ddp(dim: int, tmp_path: Path) -> None:
    plain, whole, _ = imagenet(tmp_path, 2, "ddp", "--enable-amp-mode")
    amp = ("--enable-model-parallel", "--model-parallel-dim", dim, "--enable-amp-mode")
    shared, joined, _ = imagenet(tmp_path, 2, "shared", *amp)
    assert shared[::3] == pytest.approx(plain[::3], abs=2e-2)
    assert apart(whole, joined) <= 2e-2


def test_zero_is_refused_over_shards_and_taken_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="would write one rank's shard over all others'"):
        imagenet(tmp_path, 2, "zero", "--enable-zero-optim", "--enable-model-parallel", "--model-parallel-dim", 1)
    plain, whole, _ = imagenet(tmp_path, 2, "ddp")
    zero, same, _ = imagenet(tmp_path, 2, "zero", "--enable-zero-optim", "--enable-model-parallel")
    assert zero == pytest.approx(plain, abs=2e-6)
    assert apart(whole, same) <= 1e-6


def mingpt(folder: Path, n: int, name: str, *words: object) -> tuple[list[float], Path, str]:
    saved = ("--save", folder / f"{name}.pt", "--save-init", folder / "init.pt")
    ran = script(n, "mingpt", *saved, *words)
    assert all(numbers(out) == pytest.approx(numbers(ran[0][0]), abs=2e-6) for out, _ in ran)
    return numbers(ran[0][0]), folder / f"{name}.pt", ran[0][1]


@pytest.mark.parametrize(
    ("n", "words"), [(2, ()), (2, ("--own-data",)), (4, ("--group-size", 2)), (2, ("--group-size", 1))], ids=str
)
def test_a_gpt_of_shared_layers_trains_as_under_ddp_clipping_on(n: int, words: Any, tmp_path: Path) -> None:
    shared, joined, _ = mingpt(tmp_path, n, "shared", "--enable-model-parallel", *words)
    plain, whole, _ = mingpt(tmp_path, 2, "ddp", "--init", tmp_path / "init.pt")
    assert len(plain) == 16
    assert min(plain[1::2]) > 0.5  # clipped
    assert shared == pytest.approx(plain, abs=5e-6)
    assert apart(whole, joined) <= 2e-5


@pytest.mark.parametrize("n", [2])
def test_a_layer_of_ones_own_trains_as_the_whole(n: int) -> None:
    out = script(n, "own_layer")[0][0]
    assert out.count("differs by") == 16
    assert max(float(found) for found in re.findall(r"differs by (\S+)", out)) <= 1e-6


def test_launched_under_torchshards_name_a_script_runs_from_first_line_to_exit(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "restoke.cli", "launch", "--as", "torchshard", "--processes", "2"]
    words = ["--enable-model-parallel", "--model-parallel-dim", "1", "--save", str(tmp_path / "shared.pt")]
    command = [*launch, str(SCRIPTS / "imagenet.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plain, whole, _ = imagenet(tmp_path, 2, "ddp")
    lines = [line for line in done.stdout.splitlines() if line.startswith("loss ")]
    assert numbers("\n".join(lines)) == pytest.approx(plain, abs=2e-6)
    assert apart(whole, tmp_path / "shared.pt") <= 1e-6
