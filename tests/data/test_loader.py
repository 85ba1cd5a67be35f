"""The loader: the order of bare torch, each rank its share, each batch watched, and each error in its place."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
)

from restoke.data import make_loader
from tests.data.loading import Numbers, Record, Shuffling, Stream, flat, lists, world


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


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 1])
def test_on_a_gpu_batches_arrive_whole_from_pinned_memory(workers: int) -> None:
    loader = make_loader(Numbers(64), world=world(device=torch.device("cuda", 0)), batch_size=8, num_workers=workers)
    assert loader.pin_memory
    batches = list(loader)
    assert {batch.device for batch in batches} == {torch.device("cuda", 0)}
    assert flat(batches) == list(range(64))
