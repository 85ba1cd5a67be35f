"""Epochs of DataLoaders taken over: begun later, left, killed and resumed at other world sizes, each sample once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from restoke import comm
from restoke.data import (
    skip_first_batches,
    take_loader,
)
from restoke.errors import DataError
from tests.data.dealing import STREAMS, WAYS, Whole, Wire, generator, real_samples, seeded, taken
from tests.data.loading import Numbers, lists, world


@pytest.fixture(autouse=True)
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(comm, "broadcast_json", wire)
    return wire


def test_even_batches_may_be_changed_between_epochs() -> None:
    for rank, expected in ((0, 2), (1, 1)):
        loader = take_loader(DataLoader(Numbers(3)), world=world(rank, 2))
        share: Any = loader.batch_sampler
        share.even_batches = False
        assert len(lists(loader)) == len(loader) == expected
        share.even_batches = True
        assert len(lists(loader)) == len(loader) == 2


def test_skipping_keeps_epoch_order_and_drop_last_and_loads_nothing_of_it() -> None:
    numbers = Numbers(11)
    made = DataLoader(numbers, batch_size=2, shuffle=True, drop_last=True, generator=generator())
    loader = take_loader(made, world=world(0, 2))
    twin = DataLoader(Numbers(11), batch_size=2, shuffle=True, drop_last=True, generator=generator())
    other = take_loader(twin, world=world(0, 2))
    whole = [lists(other) for _ in range(3)]
    assert lists(loader) == whole[0]
    numbers.loaded.clear()
    skipped = skip_first_batches(loader, 1)
    assert (len(skipped), skipped.epoch, skipped.drop_last, skipped.dataset) == (1, 1, True, numbers)
    assert lists(skipped) == whole[1][1:]
    assert len(numbers.loaded) == 2
    assert (loader.epoch, lists(skipped)) == (2, whole[2])
    assert lists(skip_first_batches(skip_first_batches(loader, 1), 1)) == []
    with pytest.raises(DataError, match="num_batches"):
        skip_first_batches(loader, -1)
    with pytest.raises(DataError, match="world"):
        skip_first_batches(DataLoader(Numbers(3)), 1)
    assert lists(skip_first_batches(DataLoader(Numbers(5), batch_size=2), 1, world=world())) == [[2, 3], [4]]


def test_skipped_streams_are_read_up_to_there() -> None:
    for workers in (0, 2):
        loader = take_loader(DataLoader(Whole(9), batch_size=2, num_workers=workers), world=world())
        assert lists(skip_first_batches(loader, 2)) == [[4, 5], [6, 7], [8]]


def test_epochs_reach_samplers_and_streams_in_persistent_workers() -> None:
    class Epochs(Whole):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([self.epoch * 100 + number for number in range(self.length)])

    loader = take_loader(DataLoader(Epochs(4), batch_size=2, num_workers=2, persistent_workers=True), world=world())
    assert [lists(loader) for _ in range(2)] == [[[0, 1], [2, 3]], [[100, 101], [102, 103]]]
    loader.set_epoch(5)
    assert lists(loader) == [[500, 501], [502, 503]]
    sampler = DistributedSampler(Numbers(8), 2, 0, seed=3)
    taken_over = take_loader(DataLoader(Numbers(8), batch_size=2, sampler=sampler), world=world(0, 2))
    taken_over.set_epoch(4)
    assert sampler.epoch == 4


def test_a_streams_own_generator_is_seeded_with_the_epoch() -> None:
    class Own(Whole):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.generator = generator()

        def __iter__(self) -> Any:
            return iter(torch.randperm(self.length, generator=self.generator).tolist())

    loader = take_loader(DataLoader(Own(6), batch_size=6), world=world())
    assert lists(loader) != lists(loader)
    loader.set_epoch(0)
    assert lists(loader) == [torch.randperm(6, generator=torch.Generator().manual_seed(0)).tolist()]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    steps=st.integers(1, 3),
    way=st.sampled_from(sorted({*WAYS, *STREAMS} - {"stream, workers", "stream that workers share"})),
    even=st.booleans(),
)
def test_across_kills_and_world_sizes_each_sample_comes_exactly_once(
    n: int, sizes: list[int], steps: int, way: str, even: bool
) -> None:
    """Each world but the last is left after some steps; generators differ in each process and rank."""
    make = WAYS.get(way) or STREAMS[way]
    with pytest.MonkeyPatch.context() as patch:
        counts: Counter[int] = Counter()
        state: Any = None
        for number, size in enumerate(sizes):
            patch.setattr(comm, "broadcast_json", Wire())
            states = []
            stop = steps if number < len(sizes) - 1 else 10**9
            for rank, loader in enumerate(taken(make, n, size, dispatch_batches=False, even_batches=even)):
                seeded(10 * number + rank)
                if state is not None:
                    loader.load_state_dict(state)
                counts.update(real_samples(loader, stop))
                states.append(loader.state_dict())
            state = states[0]
            if any(item["epoch"] for item in states):
                break
    assert counts == Counter(range(n))


@pytest.mark.parametrize("way", ["shuffled", "generator", "batches of mine", *STREAMS])
@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 3)])
def test_with_workers_too_each_sample_comes_once_across_kill_and_resume(way: str, sizes: tuple[int, ...]) -> None:
    def make(n: int, size: int, rank: int) -> DataLoader[Any]:
        made = (WAYS.get(way) or STREAMS[way])(n, size, rank)
        made.num_workers = 2
        made.prefetch_factor = 2
        return made

    counts: Counter[int] = Counter()
    state: Any = None
    with pytest.MonkeyPatch.context() as patch:
        for number, size in enumerate(sizes):
            patch.setattr(comm, "broadcast_json", Wire())
            states = []
            for rank, loader in enumerate(taken(make, 23, size, dispatch_batches=False)):
                seeded(10 * number + rank)
                if state is not None:
                    loader.load_state_dict(state)
                counts.update(real_samples(loader, 2 if number < len(sizes) - 1 else 10**9))
                states.append(loader.state_dict())
            state = states[0]
    assert counts == Counter(range(23))


def test_another_number_of_workers_cannot_continue_what_workers_shared() -> None:
    loader = take_loader(STREAMS["stream that workers share"](20, 1, 0), world=world())
    for _ in loader:
        break
    other = take_loader(DataLoader(STREAMS["stream"](20, 1, 0).dataset, batch_size=2, num_workers=1), world=world())
    other.load_state_dict(loader.state_dict())
    with pytest.raises(DataError, match="num_workers"):
        lists(other)
