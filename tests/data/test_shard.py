"""Whatever makes the order: each entry to one rank, as many to each, and from any place on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from restoke.data import ShardedBatchSampler, ShardedSampler
from restoke.data.shard import deal, deal_at_once, deal_stream, share
from tests.data.loading import Numbers

LENGTHS, RANKS, STARTS = st.integers(0, 40), st.integers(1, 6), st.integers(0, 45)
DEALS: list[Callable[..., Iterator[int]]] = [
    deal,
    deal_at_once,
    lambda order, *rest, **how: deal_at_once(torch.tensor(list(order), dtype=torch.int64), *rest, **how),
    deal_stream,
]


def dealt(how: Callable[..., Iterator[int]], length: int, ranks: int, start: int, drop_last: bool) -> list[list[int]]:
    return [list(how(range(length), ranks, rank, drop_last=drop_last, start=start)) for rank in range(ranks)]


@given(length=LENGTHS, ranks=RANKS, start=STARTS, drop_last=st.booleans(), how=st.sampled_from(DEALS))
@settings(max_examples=300)
def test_all_ranks_get_as_many_and_each_entry_goes_to_one(
    length: int, ranks: int, start: int, drop_last: bool, how: Callable[..., Iterator[int]]
) -> None:
    shares = dealt(how, length, ranks, start, drop_last)
    left = list(range(length))[start:]
    rounds = len(left) // ranks if drop_last else -(-len(left) // ranks)
    assert [len(own) for own in shares] == [rounds] * ranks == [share(length, ranks, drop_last=drop_last, start=start)] * ranks
    merged = [entry for turn in zip(*shares, strict=True) for entry in turn]
    assert merged[: len(left)] == left[: len(merged)]
    extra = Counter(merged) - Counter(left)
    assert sum(extra.values()) == max(len(merged) - len(left), 0) < ranks


@given(length=LENGTHS, ranks=RANKS, start=STARTS, drop_last=st.booleans())
def test_dealing_one_by_one_and_by_slices_is_the_same(length: int, ranks: int, start: int, drop_last: bool) -> None:
    first, *others = (dealt(how, length, ranks, start, drop_last) for how in DEALS[:3])
    assert [first, first] == others


@given(
    length=st.integers(1, 40),
    ranks=RANKS,
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_it_is_torchs_distributed_sampler(
    length: int, ranks: int, shuffle: bool, drop_last: bool, seed: int, epoch: int
) -> None:
    for rank in range(ranks):
        torchs = DistributedSampler(Numbers(length), ranks, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        torchs.set_epoch(epoch)
        around = ShardedSampler(torchs, num_replicas=ranks, rank=rank, drop_last=drop_last)
        generator = torch.Generator().manual_seed(seed + epoch)
        whole = RandomSampler(Numbers(length), generator=generator) if shuffle else SequentialSampler(Numbers(length))
        own = ShardedSampler(whole, num_replicas=ranks, rank=rank, drop_last=drop_last)
        assert list(around) == list(own) == list(torchs)
        assert len(around) == len(own) == len(torchs)


@pytest.mark.parametrize("ranks", [1, 3])
def test_any_iterable_is_sharded_and_begins_where_it_is_told_once(ranks: int) -> None:
    for order in (
        [4, 2, 0, 1],
        (str(number) for number in range(9)),
        torch.arange(7),
        RandomSampler(Numbers(5), replacement=True),
    ):
        sharded = ShardedSampler(order, num_replicas=ranks, rank=0)
        assert len(list(sharded)) > 0
    again = ShardedSampler([10, 11, 12, 13, 14, 15, 16], num_replicas=ranks, rank=0)
    again.begin_at(ranks)
    assert list(again) == [10, 11, 12, 13, 14, 15, 16][ranks::ranks]
    assert list(again) == [10, 11, 12, 13, 14, 15, 16][::ranks]
    assert again.left(2 * ranks) == len(again) - 2


def test_endless_orders_are_dealt_without_waiting_for_their_end() -> None:
    assert list(islice(ShardedSampler(count(), num_replicas=4, rank=3), 3)) == [3, 7, 11]
    assert list(islice(ShardedBatchSampler(([n] for n in count()), num_replicas=2, rank=1), 2)) == [[1], [3]]
    with pytest.raises(TypeError, match="no length"):
        len(ShardedSampler(count(), num_replicas=4, rank=3))


def test_whole_batches_are_dealt_round_robin() -> None:
    def dealt_to(rank: int, drop_last: bool) -> list[list[int]]:
        batches = BatchSampler(range(11 if not drop_last else 10), 2, drop_last)
        sharded = ShardedBatchSampler(batches, num_replicas=2, rank=rank)
        assert len(sharded) == len(list(sharded))
        return list(sharded)

    assert dealt_to(0, drop_last=False) == [[0, 1], [4, 5], [8, 9]]
    assert dealt_to(1, drop_last=False) == [[2, 3], [6, 7], [10]]
    assert dealt_to(0, drop_last=True) == [[0, 1], [4, 5]]
    assert dealt_to(1, drop_last=True) == [[2, 3], [6, 7]]
    uneven = [[0, 1, 2], [3, 4], [5]]
    assert list(ShardedBatchSampler(uneven, num_replicas=2, rank=1)) == [[3, 4], [0, 1, 2]]


def test_the_epoch_reaches_the_samplers_inside() -> None:
    inner = DistributedSampler(Numbers(4), 2, 0)
    sharded: Any = ShardedBatchSampler(BatchSampler(inner, 2, False), num_replicas=1, rank=0)
    sharded.set_epoch(3)
    assert inner.epoch == 3
