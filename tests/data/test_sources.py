"""Streams: dealt out batch by batch, alike on all ranks, and their last batch is known."""

from __future__ import annotations

import random

import pytest
from torch.utils.data import (
    DataLoader,
)

from restoke.data import make_loader
from tests.data.loading import Record, SizedStream, Stream, flat, lists, loaders, world


@pytest.mark.parametrize("workers", [0, 2])
def test_of_a_stream_the_last_batch_is_known_though_the_length_is_not(workers: int) -> None:
    record = Record()
    loader = make_loader(Stream(7), world=world(), batch_size=3, num_workers=workers)
    loader.watch(record)
    list(loader)
    assert record.told == ["begin", (None, False), (None, False), (1, True), "end"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_is_dealt_batch_by_batch_and_all_ranks_get_as_many(workers: int, drop_last: bool) -> None:
    ours = loaders(lambda: SizedStream(14), 3, batch_size=2, num_workers=workers, drop_last=drop_last)
    shares = [lists(loader) for loader in ours]
    whole = lists(DataLoader(SizedStream(14), batch_size=2, num_workers=workers, drop_last=drop_last))
    rounds = len(whole) // 3 if drop_last else -(-len(whole) // 3)
    assert [len(own) for own in shares] == [rounds] * 3
    merged = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert merged[: len(whole)] == whole[: len(merged)]
    if workers == 0:
        assert [len(loader) for loader in ours] == [rounds] * 3


def test_a_shuffling_stream_is_the_same_on_all_ranks() -> None:
    ours = loaders(lambda: Stream(12, shuffled=True), 3, batch_size=2)
    shares = []
    for rank, loader in enumerate(ours):
        random.seed(rank)
        before = random.getstate()
        shares.append(flat(loader))
        assert random.getstate() == before
    assert sorted(sample for own in shares for sample in own) == list(range(12))
    assert shares[0] != flat(ours[0])


def test_a_rank_aware_stream_is_not_shared_out_again() -> None:
    class Half(Stream):
        num_replicas, rank = 2, 1

    class Said(Stream):
        rank_aware = True

    for kind in (Half, Said):
        assert flat(make_loader(kind(4), world=world(1, 2))) == [0, 1, 2, 3]
