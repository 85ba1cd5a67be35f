"""The table's figures are means over the ranks, and the saving is against DDP's formula."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from restoke.held import MOMENTS, Held, Sizes, Weight
from restoke.memory.records import Epoch, RankMemory, State, Trained, under_ddp
from restoke.memory.table import saving, size, table
from tests.memory.training import on_a_rank, records
from tests.ranks import run

K = 1024
MODEL = Sizes([Weight((100, K)), Weight((56, K))])  # 156 Ki elements
WHOLE = 156 * K * 4


def rank(number: int, share: float, **epoch: Any) -> RankMemory:
    """A rank that holds this share of everything, its optimizer with two values for each parameter."""
    elements = round(share * 156 * K)
    held = Held(parameters=4 * elements, gradients=4 * elements, optimizer=8 * elements + 8, activations=10 * K)
    moments = dict.fromkeys(MOMENTS, held)
    peak = held.total + number * K
    measured = {"number": 0, "steps": 4, "tracked": 4, "peak": peak, "at_peak": held, "held": moments, "elsewhere": {}} | epoch
    trained = Trained(spec={"strategy": "fsdp"}, sizes=MODEL, state=State(8 * elements, elements, 8, 2))
    return RankMemory(
        rank=number, size=2, device="cpu", source="tracked storages", epochs=[Epoch(**measured)], sessions=[trained]
    )


RANKS = [rank(0, 0.75), rank(1, 0.25)]


def test_ddp_s_share_follows_from_the_sizes_and_all_ranks_state() -> None:
    assert under_ddp(RANKS) == WHOLE + WHOLE + WHOLE + 2 * WHOLE + 2 * 4


def test_the_saving_is_that_of_the_mean_rank_after_a_step() -> None:
    mean = (4 * WHOLE + 16) / 2
    assert saving(RANKS) == pytest.approx(1 - mean / (5 * WHOLE + 8))


def test_the_table_has_each_class_that_somebody_holds_and_the_mean() -> None:
    text = table(RANKS)
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in text.splitlines()
        if "│" in line
    }
    assert rows == {
        "parameters": ["312.0 KiB"] * 4,
        "gradients": ["312.0 KiB"] * 4,
        "optimizer": ["624.0 KiB"] * 4,
        "activations": ["10.0 KiB"] * 4,
        "total": ["1.2 MiB"] * 4,
    }
    assert "mean of 2 ranks" in text
    assert "largest 1.8 MiB on rank 0" in text
    assert "hold 60.0% less than under DDP: 3.0 MiB" in text


def test_each_of_several_epochs_has_its_line() -> None:
    epochs = [attrs.evolve(RANKS[0].epochs[0], number=n, peak=n * K, steps=n) for n in (1, 2)]
    lines = table([attrs.evolve(RANKS[0], epochs=epochs)]).splitlines()[-2:]
    assert lines == ["Epoch 1: peak 1.0 KiB, 1 optimizer step", "Epoch 2: peak 2.0 KiB, 2 optimizer steps"]


def test_a_run_without_a_step_says_so_and_one_with_missing_ranks_too() -> None:
    text = table([rank(1, 0.5, held={}, steps=0)])
    assert "No optimizer step was seen" in text
    assert "mean of 1 of 2 ranks" in text


def test_several_sessions_are_not_compared() -> None:
    both = attrs.evolve(RANKS[0], sessions=RANKS[0].sessions * 2)
    assert saving([both]) is None
    assert "Several sessions were trained: nothing to compare with DDP" in table([both])


def test_offloaded_bytes_are_no_saving_unsaid() -> None:
    there = dict.fromkeys(MOMENTS, Held(parameters=3 * K, optimizer=6 * K))
    assert "Beside the device, after a step: 9.0 KiB" in table([rank(0, 0.5, elsewhere=there)])


def test_a_record_is_the_same_after_json() -> None:
    again = RankMemory.of(json.loads(json.dumps(RANKS[0].plain)))
    assert (again, again.epochs, again.sessions) == (RANKS[0], RANKS[0].epochs, RANKS[0].sessions)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "-"), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 60, "1048576.0 TiB")],
)
def test_sizes_are_in_the_largest_unit_that_they_fill(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_all_ranks_get_the_table_of_all_ranks() -> None:
    ran = run(2, on_a_rank, {"strategy": "zero1", "device": "cpu"}, 2)
    assert ran[0][1] == ran[1][1] == table(records(ran))
    assert "zero1 on cpu, mean of 2 ranks" in ran[0][1]


def test_ddp_saves_nothing_against_itself() -> None:
    ran = run(2, on_a_rank, {"strategy": "ddp", "device": "cpu"}, 2)
    assert saving(records(ran)) == 0
    assert "hold as much as under DDP" in ran[0][1]
