"""A loaded state continues with the next batch, as if never stopped: at any place, with workers, at another world size."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from restoke.data import BucketedDistributedSampler, make_loader
from restoke.seeds import rng_state, set_rng_state
from tests.data.loading import (
    CPU,
    Numbers,
    Record,
    Shuffling,
    SizedStream,
    Stream,
    advance,
    flat,
    flat_after,
    lists,
    loaders,
    run,
    world,
)


def buckets(size: int = 1, rank: int = 0) -> BucketedDistributedSampler:
    return BucketedDistributedSampler(None, 2, 2, lengths=list(range(19, 0, -1)), num_replicas=size, rank=rank)


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 2},
    "shuffled": lambda: {"batch_size": 2, "shuffle": True},
    "shuffled, seed": lambda: {"batch_size": 2, "shuffle": True, "seed": 3},
    "shuffled, generator": lambda: {"batch_size": 2, "shuffle": True, "generator": torch.Generator().manual_seed(4)},
    "single": lambda: {"batch_size": None, "shuffle": True},
    "weighted": lambda: {"sampler": WeightedRandomSampler(torch.ones(19), 19)},
    "sampler with a generator": lambda: {"sampler": RandomSampler(Numbers(19), generator=torch.Generator().manual_seed(4))},
    "sampler of mine": lambda: {"sampler": Shuffling(19)},
    "DistributedSampler": lambda: {"sampler": DistributedSampler(Numbers(19), 1, 0)},
    "bucketed": lambda: {"sampler": buckets(), "batch_size": 2},
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(Numbers(19)), 3, False)},
    "batches of mine": lambda: {"batch_sampler": BatchSampler(Shuffling(19, "numpy"), 3, False)},
    "batches, bucketed": lambda: {"batch_sampler": BatchSampler(buckets(), 2, False)},
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("within", [False, True], ids=["after the loop", "within the loop"])
def test_the_rest_of_the_epoch_and_the_next_ones_are_the_same(
    make: Callable[[], dict[str, Any]], workers: int, within: bool
) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    first = make_loader(Numbers(19), world=world(), num_workers=workers, **make())
    run(first, 1)
    before, state, generators = [], None, None
    for batch in first:
        before.append(np.ravel(batch).tolist())
        if len(before) == 3 and within:
            state, generators = json_and_tensors(first.state_dict()), rng_state(CPU)
        if len(before) == 3 and not within:
            break
    if not within:
        state, generators = json_and_tensors(first.state_dict()), rng_state(CPU)
    after = run(first, 1)
    assert state is not None
    assert generators is not None

    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    second = make_loader(Numbers(19), world=world(), num_workers=workers, **make())
    record = Record()
    second.watch(record)
    set_rng_state(generators, CPU)
    second.load_state_dict(state)
    assert json_and_tensors(second.state_dict()) == state
    rest, *more = run(second, 2)
    counts = [told[0] for told in record.told[1 : len(rest) + 1]]
    assert counts in (list(range(len(rest), 0, -1)), [*[None] * (len(rest) - 1), 1])
    if within:
        assert rest == before[3:]
    if within or not state["generators"]:  # to leave early is to leave a generator of the user's where it is
        assert more == after


def json_and_tensors(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint keeps it."""
    plain = {name: value for name, value in state.items() if name != "generators"}
    return json.loads(json.dumps(plain)) | {"generators": [Comparable(item) for item in state["generators"]]}


class Comparable(torch.Tensor):
    """A tensor that `==` compares as a whole."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        return held.as_subclass(cls)

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return isinstance(other, torch.Tensor) and torch.equal(self, other)

    __hash__ = torch.Tensor.__hash__


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_continues_behind_what_was_read(workers: int) -> None:
    whole = lists(make_loader(Stream(20), world=world(), batch_size=3, num_workers=workers))
    first = make_loader(Stream(20), world=world(), batch_size=3, num_workers=workers)
    advance(first, 2)
    second = make_loader(Stream(20), world=world(), batch_size=3, num_workers=workers)
    second.load_state_dict(first.state_dict())
    assert [lists(second), lists(second)] == [whole[2:], whole]


def test_a_shuffling_stream_is_replayed() -> None:
    first = make_loader(Stream(20, shuffled=True), world=world(), batch_size=3)
    got = advance(first, 2)
    second = make_loader(Stream(20, shuffled=True), world=world(), batch_size=3)
    second.load_state_dict(first.state_dict())
    assert sorted([*flat(got), *flat(second)]) == list(range(20))


SHARED: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "in order": lambda size, rank: {},
    "shuffled": lambda size, rank: {"shuffle": True},
    "RandomSampler": lambda size, rank: {"sampler": RandomSampler(Numbers(60))},
    "of mine": lambda size, rank: {"sampler": Shuffling(60)},
    "DistributedSampler": lambda size, rank: {"sampler": DistributedSampler(Numbers(60), size, rank)},
    "batches": lambda size, rank: {"batch_sampler": BatchSampler(RandomSampler(Numbers(60)), 2, False)},
}


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    steps=st.integers(1, 4),
    batch_size=st.integers(1, 3),
    way=st.sampled_from(sorted(SHARED)),
)
def test_across_world_sizes_each_sample_still_comes_once(sizes: list[int], steps: int, batch_size: int, way: str) -> None:
    """Each world but the last stops after some batches. At most one round is padded: the last, of whichever world it is."""
    counts: Counter[int] = Counter()
    state = None
    for number, size in enumerate(sizes):
        states = []
        for rank in range(size):
            loader = make_loader(Numbers(60), world=world(rank, size), batch_size=batch_size, **SHARED[way](size, rank))
            if state is not None:
                loader.load_state_dict(state)
            stop = steps if number < len(sizes) - 1 else 10**9
            counts.update(sample for batch in advance(loader, stop) for sample in batch)
            states.append(loader.state_dict())
        assert all(item["position"] == states[0]["position"] for item in states)
        state = states[0]
        if state["epoch"] > 0:
            break
    assert set(counts) == set(range(60))
    assert sum(counts.values()) - 60 < max(sizes) * (2 if way == "batches" else 1)


def test_a_bucketed_sampler_goes_to_another_world_size_by_itself() -> None:
    counts: Counter[int] = Counter()
    firsts = [make_loader(Numbers(19), world=world(rank, 2), batch_size=2, sampler=buckets(2, rank)) for rank in range(2)]
    for loader in firsts:
        counts.update(sample for batch in advance(loader, 2) for sample in batch)
    alone = make_loader(Numbers(19), world=world(), batch_size=2, sampler=buckets())
    alone.load_state_dict(firsts[0].state_dict())
    counts.update(flat(alone))
    assert set(counts) == set(range(19))
    assert alone.epoch == 1


def test_the_end_of_an_epoch_is_a_place_too() -> None:
    first = make_loader(Numbers(4), world=world(), batch_size=2)
    states = [first.state_dict() for _ in first]
    second = make_loader(Numbers(4), world=world(), batch_size=2)
    second.load_state_dict(states[-1])
    assert (second.epoch, lists(second), second.epoch, len(lists(second))) == (0, [], 1, 2)
    second.load_state_dict(first.state_dict())
    assert (second.epoch, len(lists(second))) == (1, 2)


def test_a_sampler_of_its_own_kind_is_put_back_to_the_start_of_the_epoch() -> None:
    class Rotating:
        """Every iteration starts one further; it saves where."""

        def __init__(self) -> None:
            self.turn = 0

        def __iter__(self) -> Any:
            self.turn += 1
            return iter([(self.turn + index) % 5 for index in range(5)])

        def state_dict(self) -> dict[str, int]:
            return {"turn": self.turn}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.turn = state["turn"]

    first = make_loader(Numbers(5), world=world(), sampler=Rotating())
    assert [flat(first), flat(first)] == [[1, 2, 3, 4, 0], [2, 3, 4, 0, 1]]
    assert advance(first, 2) == [[3], [4]]
    second = make_loader(Numbers(5), world=world(), sampler=Rotating())
    second.load_state_dict(first.state_dict())
    assert [flat(second), flat(second)] == [[0, 1, 2], [4, 0, 1, 2, 3]]


def test_nothing_is_loaded_for_the_batches_that_are_skipped() -> None:
    first = make_loader(Numbers(9), world=world(), shuffle=True, seed=0)
    advance(first, 6)
    numbers = Numbers(9)
    second = make_loader(numbers, world=world(), shuffle=True, seed=0)
    second.load_state_dict(first.state_dict())
    assert len(lists(second)) == len(numbers.loaded) == 3


def test_a_dealt_stream_goes_to_another_world_size() -> None:
    firsts = loaders(lambda: SizedStream(20), 2, batch_size=2)
    counts = Counter(sample for loader in firsts for batch in advance(loader, 2) for sample in batch)
    for loader in loaders(lambda: SizedStream(20), 3, batch_size=2):
        counts.update(flat_after(firsts[0].state_dict(), loader))
    assert counts == Counter(range(20))
