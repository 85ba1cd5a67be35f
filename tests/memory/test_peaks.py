"""Where the device's allocator counts, its peak is the peak, and what it has beyond the census is `other`."""

from __future__ import annotations

import pytest
import torch

from restoke.memory import measure
from restoke.memory.measure import measure_memory
from restoke.memory.peaks import Allocator, allocator
from tests.memory.training import session, train

HELD = 104 + (2 * 104 + 4 * 4)


class Counting:
    """An allocator that has what it is told."""

    def __init__(self) -> None:
        self.allocated, self.highest, self.begun = 1000, 5000, 0

    def begin(self) -> None:
        self.begun += 1


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    stands_in = Allocator(lambda: made.allocated, lambda: made.highest, made.begin)
    monkeypatch.setattr(measure, "allocator", lambda _: stands_in)
    return made


def test_a_cpu_has_none_that_counts() -> None:
    assert allocator(torch.device("cpu")) is None


def test_the_peak_is_the_allocator_s_and_stays_what_it_was(counting: Counting) -> None:
    one = session()
    with measure_memory(one) as memory:
        train(one, 2)
    counting.highest = 9000
    assert memory.peak == 5000
    assert memory.record.source == "the allocator"


def test_what_is_allocated_beyond_the_census_is_other(counting: Counting) -> None:
    one = session()
    with measure_memory(one, steps=1) as memory:
        train(one, 3)
    assert memory.held["after the step"].other == 1000 - HELD - 104
    assert memory.held["after the step"].activations == 0


def test_three_steps_of_each_epoch_are_tracked_and_each_begins_the_peak_anew(counting: Counting) -> None:
    one = session()
    with measure_memory(one) as memory:
        train(one, 5)
        memory.next_epoch()
        train(one, 4)
    assert [(epoch.steps, epoch.tracked) for epoch in memory.epochs] == [(5, 3), (4, 3)]
    assert counting.begun == 2
    assert memory.at_peak.total > HELD


@pytest.mark.gpu
def test_a_gpu_s_peak_is_its_allocator_s() -> None:
    one = session(device="cuda")
    with measure_memory(one) as memory:
        train(one, 5, torch.ones(2, 3, device="cuda"))
    assert memory.peak >= memory.held["after the step"].total >= HELD
    assert memory.peak == torch.cuda.max_memory_allocated()
