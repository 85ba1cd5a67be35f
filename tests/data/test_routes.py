"""Any sampler is shared out to the data ranks, exactly once and in the same order; what shards itself is taken as it is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from restoke.data import BucketedDistributedSampler, ShardedBatchSampler, ShardedSampler, make_loader
from tests.data.loading import Numbers, Shuffling, flat, lists, loaders, world


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_a_sampler_ranks_get_what_torchs_distributed_sampler_gives_them(shuffle: bool) -> None:
    ours = loaders(Numbers(11), 3, batch_size=2, shuffle=shuffle, seed=7)
    for rank, loader in enumerate(ours):
        sampler = DistributedSampler(Numbers(11), 3, rank, shuffle=shuffle, seed=7)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert lists(loader) == lists(DataLoader(Numbers(11), batch_size=2, sampler=sampler))


SAMPLERS: dict[str, Any] = {
    "RandomSampler": lambda: RandomSampler(Numbers(17)),
    "RandomSampler, generators that differ": lambda: RandomSampler(Numbers(17), generator=own_generator()),
    "SubsetRandomSampler": lambda: SubsetRandomSampler(range(17)),
    "SequentialSampler": lambda: SequentialSampler(Numbers(17)),
    "list": lambda: list(range(17)),
    "python's random": lambda: Shuffling(17, "python"),
    "numpy's random": lambda: Shuffling(17, "numpy"),
    "torch's random": lambda: Shuffling(17, "torch"),
}


def own_generator() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("as_batches", [False, True])
def test_any_sampler_is_shared_out_exactly_once_though_the_ranks_generators_differ(make: Any, as_batches: bool) -> None:
    options: dict[str, Any] = (
        {"batch_sampler": lambda: BatchSampler(make(), 2, False)} if as_batches else {"sampler": make, "batch_size": 2}
    )
    ours = loaders(Numbers(17), 3, **options)
    for _ in range(2):
        shares = []
        for rank, loader in enumerate(ours):
            torch.manual_seed(rank)
            random.seed(rank)
            np.random.seed(rank)
            shares.append(lists(loader))
        assert [len(own) for own in shares] == [3, 3, 3]
        counts = Counter(sample for own in shares for batch in own for sample in batch)
        assert set(counts) == set(range(17))
        assert max(counts.values()) <= 2


def test_random_orders_change_from_epoch_to_epoch() -> None:
    for make in (SAMPLERS["RandomSampler"], SAMPLERS["python's random"], SAMPLERS["numpy's random"]):
        (loader, _) = loaders(Numbers(17), 2, sampler=make)
        assert flat(loader) != flat(loader)


def test_samplers_are_left_as_they_were_found() -> None:
    mine = own_generator()
    without, with_mine = RandomSampler(Numbers(4)), RandomSampler(Numbers(4), generator=mine)
    for sampler in (without, with_mine):
        list(make_loader(Numbers(4), world=world(0, 2), sampler=sampler, seed=1))
    assert (without.generator, with_mine.generator) == (None, mine)


def test_a_distributed_sampler_drops_or_pads_as_it_says_itself() -> None:
    for drop_last in (False, True):
        sampler = DistributedSampler(Numbers(5), 2, 1, drop_last=drop_last)
        order = list(sampler)
        loader = make_loader(Numbers(5), world=world(1, 2), sampler=sampler)
        assert (len(loader), flat(loader), len(order)) == (len(order), order, 2 if drop_last else 3)


def test_a_weighted_sampler_draws_alike_on_all_ranks() -> None:
    def sampler() -> WeightedRandomSampler:
        return WeightedRandomSampler(torch.ones(50), 20)

    whole = flat(loaders(Numbers(50), 1, sampler=sampler, seed=0)[0])
    shares = [flat(loader) for loader in loaders(Numbers(50), 2, sampler=sampler, seed=0)]
    assert [sample for pair in zip(*shares, strict=True) for sample in pair] == whole


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(0, 30),
    size=st.integers(1, 5),
    batch_size=st.integers(1, 5),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_rank_gets_as_many_batches_and_each_sample_comes_once_up_to_padding(
    length: int, size: int, batch_size: int, shuffle: bool, drop_last: bool
) -> None:
    ours = loaders(Numbers(length), size, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=1)
    shares = [lists(loader) for loader in ours]
    assert len({tuple(len(batch) for batch in own) for own in shares}) == 1
    assert {len(loader) for loader in ours} == {len(shares[0])}
    counts = Counter(sample for own in shares for batch in own for sample in batch)
    if drop_last:
        assert set(counts.values()) <= {1}
        assert length - len(counts) < size * batch_size
    else:
        assert set(counts) == set(range(length))
        assert sum(counts.values()) - length < size


def test_a_rank_aware_sampler_is_taken_as_it_is() -> None:
    class Aware:
        num_replicas, rank = 2, 1

        def __iter__(self) -> Iterator[int]:
            return iter([1, 3, 5])

        def __len__(self) -> int:
            return 3

    loader = make_loader(Numbers(6), world=world(1, 2), batch_size=2, sampler=Aware())
    assert (lists(loader), len(loader)) == ([[1, 3], [5]], 2)
    batched = make_loader(Numbers(6), world=world(1, 2), batch_sampler=BatchSampler(Aware(), 2, False))
    assert (lists(batched), len(batched)) == ([[1, 3], [5]], 2)
    lengths = [5, 1, 4, 2, 3, 6, 8, 7]
    own = BucketedDistributedSampler(None, 2, 2, lengths=lengths, num_replicas=2, rank=1)
    order = list(own)
    assert flat(make_loader(Numbers(8), world=world(1, 2), batch_size=2, sampler=own)) == order
    sharded = ShardedSampler(range(8), num_replicas=2, rank=1)
    assert flat(make_loader(Numbers(8), world=world(1, 2), sampler=sharded)) == [1, 3, 5, 7]
    dealt = ShardedBatchSampler([[0], [1], [2], [3]], num_replicas=2, rank=1)
    assert flat(make_loader(Numbers(8), world=world(1, 2), batch_sampler=dealt)) == [1, 3]
