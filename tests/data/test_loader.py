"""The loader: the order of bare torch, each rank its share, each batch watched, and each error in its place."""

from __future__ import annotations

import gc
import multiprocessing
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
from tests.data.loading import Numbers, Record, Shuffling, SizedStream, Stream, flat, lists, loaders, world


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own_generator", [False, True])
def test_alone_and_without_a_seed_it_is_bare_torch(shuffle: bool, drop_last: bool, own_generator: bool) -> None:
    """The same batches in three epochs, and afterwards the process's generator where bare torch leaves it."""

    def run(make: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(9) if own_generator else None
        loader = make(shuffle=shuffle, drop_last=drop_last, generator=generator, batch_size=3)
        return [lists(loader) for _ in range(3)], torch.rand(()).item()

    ours = run(lambda **options: make_loader(Numbers(10), world=world(), **options))
    assert ours == run(lambda **options: DataLoader(Numbers(10), **options))


def test_a_seed_makes_the_order_depend_on_it_and_the_epoch_alone() -> None:
    def orders(seed: int, noise: int) -> list[list[int]]:
        torch.manual_seed(noise)
        loader = make_loader(Numbers(20), world=world(), shuffle=True, seed=seed)
        return [flat(loader) for _ in range(2)]

    assert orders(3, 0) == orders(3, 1)
    assert orders(3, 0)[0] != orders(3, 0)[1]
    assert orders(3, 0) != orders(4, 0)


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


def test_samplers_are_told_the_epoch_and_the_user_is_followed() -> None:
    sampler = DistributedSampler(Numbers(8), 1, 0)
    loader = make_loader(Numbers(8), world=world(), sampler=sampler)

    def order(epoch: int) -> list[int]:
        mine = DistributedSampler(Numbers(8), 1, 0)
        mine.set_epoch(epoch)
        return list(mine)

    assert [flat(loader), flat(loader)] == [order(0), order(1)]
    sampler.set_epoch(7)
    assert (loader.epoch, flat(loader), flat(loader)) == (7, order(7), order(8))
    sampler.set_epoch(8)  # again, though it was just done
    assert flat(loader) == order(8)
    loader.set_epoch(3)
    assert (sampler.epoch, flat(loader), loader.epoch) == (3, order(3), 4)
    for batch in loader:
        assert (int(batch), loader.epoch) == (order(4)[0], 4)
        break
    assert (loader.epoch, flat(loader)) == (5, order(5))


def test_a_sampler_inside_a_batch_sampler_and_a_stream_are_told_the_epoch_too() -> None:
    class Told(SizedStream):
        epochs: list[int] = []  # noqa: RUF012 - one list for the test

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    inner = DistributedSampler(Numbers(8), 1, 0)
    loader = make_loader(Numbers(8), world=world(), batch_sampler=BatchSampler(inner, 2, False))
    assert (flat(loader) != flat(loader), inner.epoch) == (True, 2)
    list(make_loader(Told(3), world=world()))
    assert Told.epochs == [0, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_watchers_hear_of_every_batch_what_remains_and_which_is_last(workers: int) -> None:
    record = Record()
    loader = make_loader(Numbers(7), world=world(), batch_size=3, num_workers=workers)
    loader.watch(record)
    loader.watch(record)
    list(loader)
    assert record.told == ["begin", (3, False), (2, False), (1, True), "end"]
    record.told.clear()
    for _ in loader:
        break
    assert record.told == ["begin", (3, False), "end"]


def test_watchers_hear_before_the_batch_is_used_and_of_nested_loaders_in_order() -> None:
    record = Record()
    outer, inner = (make_loader(Numbers(2), world=world()) for _ in range(2))
    outer.watch(record)
    inner.watch(record)
    for batch in outer:
        record.told.append(int(batch))
        list(inner)
    nested = ["begin", (2, False), (1, True), "end"]
    assert record.told == ["begin", (2, False), 0, *nested, (1, True), 1, *nested, "end"]


@pytest.mark.parametrize("workers", [0, 2])
def test_of_a_stream_the_last_batch_is_known_though_the_length_is_not(workers: int) -> None:
    record = Record()
    loader = make_loader(Stream(7), world=world(), batch_size=3, num_workers=workers)
    loader.watch(record)
    list(loader)
    assert record.told == ["begin", (None, False), (None, False), (1, True), "end"]


def test_a_sampler_of_unknown_or_wrong_length_still_has_a_known_last_batch() -> None:
    class Wrong(list):
        def __len__(self) -> int:
            return 2

    for sampler, before in ((Shuffling(3), [(None, False)] * 2), (Wrong([0, 1, 2]), [(2, False), (None, False)])):
        record = Record()
        loader = make_loader(Numbers(3), world=world(), sampler=sampler)
        loader.watch(record)
        list(loader)
        assert record.told == ["begin", *before, (1, True), "end"]


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise KeyError("sample 4")
        return super().__getitem__(index)


class BrokenStream(Stream):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        raise KeyError("sample 4")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Broken(8), BrokenStream(8)], ids=["map", "stream"])
def test_an_error_in_the_next_batch_comes_after_this_one_was_used(dataset: Any, workers: int) -> None:
    record, seen = Record(), []
    loader = make_loader(dataset, world=world(), batch_size=2, num_workers=workers)
    loader.watch(record)
    with pytest.raises(KeyError, match="sample 4"):
        seen.extend(batch.tolist() for batch in loader)
    assert seen == [[0, 1], [2, 3]]
    assert [told[1] for told in record.told[1:-1]] == [False, False]
    assert record.told[-1] == "end"


def test_an_error_of_the_sampler_comes_after_its_earlier_batches() -> None:
    def broken() -> Iterator[int]:
        yield from range(3)
        raise KeyError("order")

    seen = []
    with pytest.raises(KeyError, match="order"):
        seen.extend(flat([batch])[0] for batch in make_loader(Numbers(8), world=world(), sampler=broken()))
    assert seen == [0, 1, 2]


def test_without_workers_nothing_is_loaded_ahead_and_with_workers_something_is() -> None:
    numbers = Numbers(4)
    for batch in make_loader(numbers, world=world()):
        assert numbers.loaded[-1] == int(batch)


def test_leaving_early_ends_the_workers() -> None:
    before = set(multiprocessing.active_children())
    for _ in make_loader(Numbers(50), world=world(), num_workers=2):
        assert len(set(multiprocessing.active_children()) - before) == 2
        break
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


def test_persistent_workers_go_on_after_an_epoch_was_left() -> None:
    loader = make_loader(Numbers(8), world=world(), num_workers=2, persistent_workers=True, batch_size=2)
    for _ in loader:
        break
    assert [flat(loader), flat(loader)] == [list(range(8))] * 2


def test_two_iterations_at_once_do_not_disturb_each_other() -> None:
    loader = make_loader(Numbers(4), world=world())
    assert [(int(one), int(other)) for one, other in zip(loader, loader, strict=True)] == [(n, n) for n in range(4)]
    assert loader.epoch == 2


def test_batches_are_placed_and_nested_as_they_were() -> None:
    class Nested(Numbers):
        def __getitem__(self, index: int) -> Any:
            return {"x": torch.ones(2), "pair": (torch.tensor(index), str(index))}

    (batch,) = make_loader(Nested(3), world=world(device=torch.device("meta")), batch_size=3)
    assert (batch["x"].device.type, batch["x"].shape) == ("meta", (3, 2))
    assert batch["pair"][0].device.type == "meta"
    assert batch["pair"][1] == ("0", "1", "2")


def test_it_has_the_attributes_of_torchs_dataloader() -> None:
    numbers = Numbers(6)
    loader = make_loader(
        numbers, world=world(), batch_size=4, drop_last=True, num_workers=2, persistent_workers=True, timeout=9
    )
    bare = DataLoader(numbers, batch_size=4, drop_last=True, num_workers=2, persistent_workers=True, timeout=9)
    names = ("dataset", "batch_size", "drop_last", "num_workers", "timeout", "collate_fn", "prefetch_factor", "pin_memory")
    more = ("persistent_workers", "worker_init_fn", "multiprocessing_context", "generator")
    for name in (*names, *more):
        assert getattr(loader, name) == getattr(bare, name)
    assert (len(loader), type(loader.sampler), type(loader.batch_sampler)) == (1, SequentialSampler, BatchSampler)
    own = RandomSampler(numbers)
    assert make_loader(numbers, world=world(), sampler=own).sampler is own
    batches = BatchSampler(own, 2, False)
    given_batches = make_loader(numbers, world=world(), batch_sampler=batches)
    assert (given_batches.batch_sampler, given_batches.batch_size, given_batches.sampler) == (batches, None, own)
    assert len(make_loader(numbers, world=world(0, 2), sampler=own).sampler) == 3


def test_single_samples_come_where_there_is_no_batch_size() -> None:
    loader = make_loader(Numbers(5), world=world(1, 2), batch_size=None)
    assert (list(loader), len(loader)) == ([1, 3, 0], 3)
    assert list(make_loader(Stream(3), world=world(), batch_size=None)) == [0, 1, 2]


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
