"""What is printed, by whom, and how."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch

from restoke import ParamNormalize
from restoke.errors import SpecError
from restoke.facades.stoke.printing import Printer, ranks_of
from tests.facades.stoke.samples import CE, batches, micro_step, stoke

Captured = pytest.CaptureFixture[str]


# info_rank as a tuple printed nowhere
@pytest.mark.parametrize(
    ("chosen", "ranks"),
    [
        (0, {0}),
        (2, {2}),
        ([0, 2], {0, 2}),
        ((1, 2), {1, 2}),
        ({1}, {1}),
        (range(2), {0, 1}),
        (None, set()),
        ([], set()),
    ],
)
def test_the_chosen_ranks_print_and_one_process_always_does(chosen: Any, ranks: set[int], capsys: Captured) -> None:
    for rank in range(3):
        Printer(rank, chosen, 3).say("hello")
        assert bool(capsys.readouterr().out) is (rank in ranks)
    Printer(None, chosen).say("hello")
    assert capsys.readouterr().out == "Stoke -- hello\n"


@pytest.mark.parametrize("wrong", ["0", "all", 1.5, True, [0, "1"], object()], ids=str)
def test_what_is_no_rank_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"info_rank=.*Instead: 0, \[0, 1\], or None to print nowhere"):
        ranks_of(wrong, "info_rank")


@pytest.mark.parametrize("wrong", [3, -1, [0, 3]], ids=str)
def test_a_rank_that_is_not_there_is_refused(wrong: Any, capsys: Captured) -> None:
    with pytest.raises(SpecError, match=r"info_rank=.*: the ranks are 0 to 2. Instead: some of them, or None"):
        Printer(0, wrong, 3)
    with pytest.raises(SpecError, match="there is rank 0 alone"):
        Printer(0, wrong, 1)
    Printer(None, wrong).say("alone, whoever is asked")
    assert capsys.readouterr().out == "Stoke -- alone, whoever is asked\n"


def test_a_list_is_a_line_each_or_one_line(capsys: Captured) -> None:
    it = stoke()
    it.print(["a", 2])
    it.print(["a", 2], single_line=True)
    it.print("x, y")
    it.print({"k": 1})
    it.print_on_devices("there", rank=5)
    it.print_on_devices(("a", "b"), rank=[0])
    lines = ["a", "2", "a, 2", "x, y", "{'k': 1}", "there", "a", "b"]
    assert capsys.readouterr().out == "".join(f"Stoke -- {line}\n" for line in lines)


def test_losses_are_printed_in_three_digits_with_their_message(capsys: Captured) -> None:
    it, (x, y) = stoke(), batches(1)[0]
    two = stoke([CE, CE])
    loss, losses = it.loss(it.model(x), y), two.loss(two.model(x), y)
    for one, value in ((it, loss), (two, losses)):
        one.print_ema_loss()
        one.print_ema_loss(prepend_msg="E", single_line=True)
        one.print_synced_loss(value)
        one.print_synced_loss(value, prepend_msg="S", device="cpu", single_line=True)
        one.print_mean_accumulated_synced_loss()
    v = f"{loss.item():.3f}"
    assert capsys.readouterr().out.replace("Stoke -- ", "").splitlines() == [
        *(f"Current EMA Loss: {v}", f"E: {v}", f"Step Synced Loss: {v}", f"S: {v}", f"Mean Accumulated & Synced Loss: {v}"),
        *(f"Current EMA Loss 0: {v}", f"Current EMA Loss 1: {v}", f"E 0: {v}, E 1: {v}"),
        *(f"Step Synced Loss 0: {v}", f"Step Synced Loss 1: {v}", f"S 0: {v}, S 1: {v}"),
        *(f"Mean Accumulated & Synced Loss 0: {v}", f"Mean Accumulated & Synced Loss 1: {v}"),
    ]


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (ParamNormalize.THOUSAND, "0.163 THOUSAND"),
        (1e3, "0.163 THOUSAND"),
        ("thousand", "0.163 THOUSAND"),
        (ParamNormalize.MILLION, "0.000 MILLION"),
    ],
)
def test_the_number_of_parameters_is_told_in_a_unit(unit: Any, text: str, capsys: Captured) -> None:
    it = stoke()
    it.print_num_model_parameters(unit)
    it.print_num_model_parameters()
    assert it.num_model_parameters == 6 * 16 + 16 + 16 * 3 + 3
    lines = [f"Stoke -- Total Trainable Model Parameters: {n}\n" for n in (text, "0.000 MILLION")]
    assert capsys.readouterr().out == "".join(lines)
    with pytest.raises(SpecError, match=r"normalize='MILION': there is no such unit. Instead: did you mean 'MILLION'"):
        it.print_num_model_parameters("MILION")


def test_trained_parameters_are_dumped(capsys: Captured) -> None:
    it = stoke()
    it.model_access[0].weight.requires_grad = False
    it.dump_model_parameter_info()
    assert it.num_model_parameters == 16 + 16 * 3 + 3
    assert capsys.readouterr().out.splitlines() == [
        "Stoke -- 0.bias: shape (16,), device cpu, dtype torch.float32",
        "Stoke -- 2.weight: shape (3, 16), device cpu, dtype torch.float32",
        "Stoke -- 2.bias: shape (3,), device cpu, dtype torch.float32",
    ]


# B56, B57: several lines every micro-batch, one of them wrong, some in spite of verbose=False
def test_verbose_shows_the_status_once_and_nothing_else(capsys: Captured) -> None:
    it = stoke(verbose=True, grad_accum_steps=2, grad_clip=1.0)
    told = capsys.readouterr().out
    assert told.count("STOKE STATE:") == 1
    assert len(told.splitlines()) == 15
    assert "Stoke --     Batch size (effective): 16\n" in told
    quiet = stoke(grad_accum_steps=2, grad_clip=1.0)
    for one in (it, quiet):
        for x, y in batches(4):
            micro_step(one, x, y)
        one.reset()
    assert capsys.readouterr() == ("", "")


def test_saving_and_loading_print_nothing(tmp_path: Any, capsys: Captured) -> None:
    it = stoke()
    it.load(*it.save(tmp_path))
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    shown = ""

    def flush(self) -> None:
        self.shown = self.getvalue()


def test_a_line_is_shown_at_once_where_a_launcher_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", pipe := Pipe())
    Printer(None, 0).say("now")
    assert pipe.shown == "Stoke -- now\n"


def test_colour_goes_to_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    for out, coloured in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", out)
        Printer(None, 0).say("a [bold] word " + "x" * 200)
        text = out.getvalue()
        assert ("\x1b[" in text) is coloured
        assert "a [bold] word " + "x" * 200 in text  # no markup is read, no line is broken


def test_a_model_on_no_gpu_says_so() -> None:
    it = stoke()
    assert (it.rank, it.world_size, it.gpu, it.device, it.world.size) == ("cpu", 1, False, torch.device("cpu"), 1)
