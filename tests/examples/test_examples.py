"""Every example runs under its spec files, and trains the same where it must."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples.digits.train import Images, accuracy
from restoke import Spec, Stoke
from restoke.facts import Facts
from restoke.table import problems
from restoke.testing import ranks
from tests.examples.running import ACCURACY, EXAMPLES, FEW, LOSS, Ran, launch, run

SPECS = sorted(EXAMPLES.glob("*/*.yaml"))
DIGITS = sorted((EXAMPLES / "digits").glob("*.yaml"))


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_spec_file_is_a_declaration_that_can_run(spec: Path) -> None:
    declared = Spec.read(spec)
    processes = declared.processes or 1
    assert problems(declared, Facts(processes=processes, launched=processes > 1, per_node=processes)) == []


def test_both_examples_have_the_same_spec_files() -> None:
    assert {path.stem for path in DIGITS} == {"cpu", "ddp", "ddp-bf16", "ddp-fp16-accumulate-clip"}
    for path in DIGITS:
        assert (EXAMPLES / "chargpt" / path.name).read_text() == path.read_text()


@pytest.mark.parametrize("spec", [path.stem for path in DIGITS])
def test_digits_learn_and_end_with_a_checkpoint(spec: str, digits: Callable[[str], Ran]) -> None:
    ran = digits(spec)
    loss, right = ran.numbers(LOSS), ran.numbers(ACCURACY)
    assert loss[1] < loss[0] < math.log(10)
    assert right[1] > 25
    assert "saved stoke-digits-backward-step-20 in .restoke/digits" in ran.text
    assert (ran.folder / ".restoke" / "digits" / "stoke-digits-backward-step-20").is_dir()


def test_digits_train_the_same_in_one_process_and_in_two(digits: Callable[[str], Ran]) -> None:
    cpu, ddp = digits("cpu"), digits("ddp")
    assert ddp.numbers(LOSS) == pytest.approx(cpu.numbers(LOSS), abs=5e-3)
    assert ddp.numbers(ACCURACY) == pytest.approx(cpu.numbers(ACCURACY), abs=1.2)  # four of 360
    assert digits("ddp-bf16").numbers(LOSS) == pytest.approx(cpu.numbers(LOSS), abs=0.1)


def test_digits_train_the_same_under_torchrun(digits: Callable[[str], Ran], tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", 2)
    ran = run(tmp_path, *torchrun, EXAMPLES / "digits" / "train.py", *FEW, "--epochs", 1, "--batch-size", 16)
    assert ran.numbers(LOSS) == digits("ddp").numbers(LOSS)[:1]
    assert ran.numbers(ACCURACY) == digits("ddp").numbers(ACCURACY)[:1]


def test_digits_go_on_from_their_checkpoint_as_if_never_stopped(digits: Callable[[str], Ran], tmp_path: Path) -> None:
    script, size = EXAMPLES / "digits" / "train.py", ("--batch-size", 32)
    stopped = run(tmp_path, script, *FEW, "--epochs", 1, *size)  # as a plain script
    resumed = launch(tmp_path, "cpu", "digits/train.py", *FEW, *size, "--resume")
    for words in (LOSS, ACCURACY):
        assert stopped.numbers(words) + resumed.numbers(words) == digits("cpu").numbers(words)


def counted() -> float:
    """Seven samples in batches of two: on two ranks one comes twice. The model is right on all but two others."""
    numbers = torch.arange(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 7))
    with torch.no_grad():
        model[1].weight.copy_(2 * numbers.unsqueeze(1))
        model[1].bias.copy_(-numbers.square())
    labels = torch.where((numbers == 1) | (numbers == 5), (numbers + 1) % 7, numbers)
    samples = Images(numbers.float().view(7, 1, 1, 1), labels)
    sgd = {"optimizer": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.1}}
    stoke = Stoke(model, sgd, nn.CrossEntropyLoss(), 2, strategy="auto", verbose=False)
    return accuracy(stoke, stoke.DataLoader(samples), len(samples))


@pytest.mark.parametrize("processes", [1, 2])
def test_accuracy_counts_each_sample_once_over_all_ranks(processes: int) -> None:
    assert ranks.run(processes, counted) == pytest.approx([5 / 7] * processes)


def test_chargpt_learns_in_two_processes(tmp_path: Path) -> None:
    small: Any = ("--paragraphs", 400, "--epochs", 2, "--width", 32, "--layers", 1)
    ran = launch(tmp_path, "chargpt/ddp.yaml", "chargpt/train.py", *small)
    learned = [ran.numbers(f"epoch {number}:")[0] for number in (1, 2)]
    held_out = ran.numbers("bits per character,")
    assert held_out[1] < held_out[0] < math.log2(104) < learned[0] + 2
    assert learned[1] < learned[0] < 7
    assert "random batches" in ran.text
    assert len(ran.text.split("held out\n")[-1]) > 300


def test_a_gan_learns_in_two_processes(tmp_path: Path) -> None:
    ran = launch(tmp_path, "ddp", "gan.py", "--steps", 300)
    near, kept = ran.numbers(";"), ran.numbers("cluster,")
    assert len(near) == 5
    assert near[-1] > 20
    assert kept[-1] >= 4
