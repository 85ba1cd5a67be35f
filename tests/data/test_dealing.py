"""DataLoaders taken over: each sample once over all ranks, in one order, and what each step tells of itself."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from restoke import comm
from restoke.data import (
    BatchShare,
    Dealing,
    SeedableRandomSampler,
    make_loader,
    skip_first_batches,
    take_loader,
)
from restoke.errors import DataError
from tests.data.dealing import STREAMS, WAYS, Make, Whole, Wire, generator, real_samples, seeded, taken, trust
from tests.data.loading import Numbers, Record, lists, world


@pytest.fixture(autouse=True)
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(comm, "broadcast_json", wire)
    return wire


@pytest.mark.parametrize("make", [*WAYS.values(), *STREAMS.values()], ids=[*WAYS, *STREAMS])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_sample_comes_once_though_the_ranks_generators_differ(make: Make, size: int) -> None:
    rules: dict[str, Any] = {"dispatch_batches": False}
    loaders = taken(make, 13, size, **rules)
    for _ in range(2):
        counts: Counter[int] = Counter()
        steps = set()
        for rank, loader in enumerate(loaders):
            seeded(rank)
            record = Record()
            loader.watch(record)
            counts.update(real_samples(loader))
            assert loader.end_of_dataloader
            steps.add(len(record.told))
        assert counts == Counter(range(13))
        assert len(steps) == 1


def test_one_process_sees_what_bare_torch_does() -> None:
    for make in (WAYS["shuffled"], WAYS["generator"], WAYS["sampler's generator"], WAYS["seedable"], WAYS["batches"]):
        torch.manual_seed(3)
        bare = make(9, 1, 0)
        expected = [lists(bare) for _ in range(3)]
        torch.manual_seed(3)
        ours = take_loader(make(9, 1, 0), world=world())
        assert [lists(ours) for _ in range(3)] == expected


@pytest.mark.parametrize("way", ["shuffled", "generator", "sampler's generator", "seedable", "batches"])
def test_the_ranks_together_see_rank_0s_order_of_bare_torch(way: str) -> None:
    torch.manual_seed(5)
    bare = WAYS[way](8, 1, 0)
    torch.manual_seed(31)
    expected = [[sample for batch in lists(bare) for sample in batch] for _ in range(3)]
    first, second = taken(WAYS[way], 8, 2)
    seeded(0)
    ours = [lists(first) for _ in range(3)]
    seeded(1)
    others = [lists(second) for _ in range(3)]
    merged = [[s for pair in zip(a, b, strict=True) for part in pair for s in part] for a, b in zip(ours, others, strict=True)]
    assert merged == expected


def test_generators_that_differ_from_rank_to_rank_follow_rank_0() -> None:
    def differ(n: int, size: int, rank: int) -> DataLoader[Any]:
        own = torch.Generator().manual_seed(rank)
        return DataLoader(Numbers(n), batch_size=2, sampler=RandomSampler(Numbers(n), generator=own))

    loaders = taken(differ, 13, 2)
    for _ in range(3):
        assert Counter(sample for loader in loaders for sample in real_samples(loader)) == Counter(range(13))


def test_a_random_order_costs_one_broadcast_an_epoch_and_a_fixed_one_none(wire: Wire) -> None:
    for make, each in ((WAYS["in order"], 0), (WAYS["distributed"], 0), (WAYS["shuffled"], 1), (WAYS["batches of mine"], 1)):
        wire.said.clear()
        (loader, *_) = taken(make, 8, 2)
        lists(loader)
        lists(loader)
        assert len(wire.said) == 2 * each


def test_seedable_orders_depend_on_rank_0s_seed_and_the_epoch() -> None:
    made = [
        DataLoader(Numbers(12), batch_size=2, shuffle=True),
        DataLoader(Numbers(12), batch_sampler=BatchSampler(RandomSampler(Numbers(12)), 2, False)),
    ]
    for dataloader in made:
        torch.manual_seed(42)
        loader = take_loader(dataloader, world=world(0, 2), dealing=Dealing(use_seedable_sampler=True))
        share: Any = loader.batch_sampler
        assert isinstance(share, BatchShare)
        assert isinstance(share.batch_sampler.sampler, SeedableRandomSampler)
        torch.manual_seed(7)
        epochs = [lists(loader) for _ in range(3)]
        loader.set_epoch(0)
        assert [lists(loader) for _ in range(3)] == epochs
        order = torch.randperm(12, generator=torch.Generator().manual_seed(42 + 1)).tolist()
        assert epochs[1] == [order[at : at + 2] for at in (0, 4, 8)]
    seeds = (Dealing(use_seedable_sampler=True, data_seed=seed) for seed in (1, 1, 2))
    one, same, other = (lists(take_loader(made[0], world=world(0, 2), dealing=rules)) for rules in seeds)
    assert one == same != other


def test_transforms_stay_different_on_each_rank_though_the_generators_are_rank_0s(wire: Wire) -> None:
    class Noisy(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(())

    noise = []
    for rank in range(2):
        torch.manual_seed(0)
        loaded = DataLoader(Noisy(8), batch_size=2, shuffle=True, generator=generator(), num_workers=1)
        noise.append([batch.tolist() for batch in take_loader(loaded, world=world(rank, 2))])
    assert noise[0] != noise[1]


@pytest.mark.parametrize("types", [("torch",), ("python", "numpy"), ("generator", "torch", "python", "numpy")])
def test_other_generators_follow_rank_0_on_request(types: tuple[str, ...]) -> None:
    drawn = []
    for rank in range(2):
        seeded(rank)
        loader = take_loader(WAYS["in order"](4, 2, rank), world=world(rank, 2), dealing=Dealing(rng_types=types))
        next(iter(loader))
        drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
    alike = {"torch": drawn[0][0] == drawn[1][0], "python": drawn[0][1] == drawn[1][1], "numpy": drawn[0][2] == drawn[1][2]}
    assert {name for name, same in alike.items() if same} == set(types) - {"generator"}


@pytest.mark.parametrize(
    ("n", "rules", "remainders"),
    [
        (9, {}, [-1, -1, 1]),
        (8, {}, [-1, 0]),
        (11, {"even_batches": False}, [-1, -1, 3]),
        (12, {"even_batches": False}, [-1, -1, 0]),
    ],
)
def test_a_step_tells_what_is_real_in_it_and_whether_it_is_the_last(n: int, rules: Any, remainders: list[int]) -> None:
    for loader in taken(WAYS["in order"], n, 2, **rules):
        assert (loader.total_batch_size, loader.total_dataset_length) == (4, n)
        assert not loader.end_of_dataloader
        told = [(loader.remainder, loader.end_of_dataloader) for _ in loader]
        assert told == [(left, left != -1) for left in remainders]
        assert loader.end_of_dataloader


def test_the_last_real_samples_are_known_for_streams_skips_and_batches_of_any_size() -> None:
    (loader, _) = taken(STREAMS["stream"], 9, 2, dispatch_batches=False)
    assert [loader.remainder for _ in loader] == [-1, -1, 1]
    skipped = skip_first_batches(taken(WAYS["in order"], 9, 2)[0], 2)
    assert [(skipped.remainder, skipped.real) for _ in skipped] == [(1, (1, 0))]
    batches = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    for rank in range(2):
        loader = take_loader(DataLoader(Numbers(9), batch_sampler=batches), world=world(rank, 2))
        assert [(loader.real, loader.sizes, loader.remainder) for _ in loader] == [((3, 2), (3, 2), -1), ((4, 0), (4, 3), 4)]
    single = take_loader(DataLoader(Numbers(3), batch_size=None), world=world(0, 2))
    assert lists([list(single)]) == [[0, 2]]


def test_a_sampler_that_knows_its_rank_is_not_split_again_and_a_wrong_one_is_refused() -> None:
    sampler = DistributedSampler(Numbers(8), 2, 1, shuffle=False)
    loader = take_loader(DataLoader(Numbers(8), batch_size=2, sampler=sampler), world=world(1, 2))
    assert lists(loader) == [[1, 3], [5, 7]]
    halves = Dealing(split_batches=True)
    assert lists(take_loader(DataLoader(Numbers(8), batch_size=4, sampler=sampler), world=world(1, 2), dealing=halves)) == [
        [1, 3],
        [5, 7],
    ]
    batched = DataLoader(Numbers(8), batch_sampler=BatchSampler(sampler, 2, False))
    assert lists(take_loader(batched, world=world(1, 2))) == [[1, 3], [5, 7]]
    with pytest.raises(DataError, match="data rank 0 of 2"):
        take_loader(DataLoader(Numbers(8), batch_size=2, sampler=sampler), world=world(0, 2))
    with pytest.raises(DataError, match="split_batches"):
        take_loader(batched, world=world(1, 2), dealing=halves)
    with pytest.raises(DataError, match="dispatch_batches"):
        take_loader(batched, world=world(1, 2), dealing=Dealing(dispatch_batches=True))


@pytest.mark.parametrize(
    ("names", "right", "wrong"),
    [
        (("rank", "num_replicas"), (0, 2), (0, 3)),
        (("rank", "world_size"), (0, 2), (1, 2)),
        (("_distributed",), ("node 0 of 2",), ("node 0 of 3",)),
    ],
)
def test_a_stream_that_knows_its_rank_is_read_as_it_is_and_a_wrong_one_refused(names: Any, right: Any, wrong: Any) -> None:
    class Node:
        def __init__(self, text: str) -> None:
            self.rank, self.world_size = int(text.split()[1]), int(text.split()[3])

    def stream(values: Any) -> Whole:
        made = Whole(4)
        for name, value in zip(names, values, strict=True):
            setattr(made, name, Node(value) if isinstance(value, str) else value)
        return made

    loader = take_loader(DataLoader(stream(right), batch_size=2), world=world(0, 2))
    assert lists(loader) == [[0, 1], [2, 3]]
    assert loader.real is None
    with pytest.raises(DataError, match="data rank 0 of 2"):
        take_loader(DataLoader(stream(wrong), batch_size=2), world=world(0, 2))


def test_what_cannot_be_obeyed_is_refused() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([])

    pinned = DataLoader(Numbers(3))
    pinned.pin_memory_device = "xpu"
    cases = [
        (lambda: Dealing(rng_types=("dice",)), "rng_types"),
        (lambda: Dealing(dispatch_batches=True, device_placement=False), "dispatch_batches"),
        (lambda: Dealing(data_seed=3), "data_seed"),
        (lambda: take_loader(Own(Numbers(3)), world=world()), "dataloader"),
        (lambda: take_loader(DataLoader(Numbers(3), num_workers=1, in_order=False), world=world()), "in_order"),
        (lambda: take_loader(pinned, world=world()), "pin_memory_device"),
        (lambda: taken(lambda *_: DataLoader(Numbers(9), batch_size=3), 9, 2, split_batches=True), "batch_size"),
        (lambda: taken(lambda *_: DataLoader(Whole(9), batch_size=3), 9, 2, split_batches=True), "batch_size"),
        (lambda: taken(lambda *_: DataLoader(Whole(9)), 9, 2, dispatch_batches=True, even_batches=False), "even_batches"),
        (lambda: taken(lambda *_: DataLoader(Numbers(9), batch_size=None), 9, 2, even_batches=False), "even_batches"),
    ]
    for make, axis in cases:
        with pytest.raises(DataError) as caught:
            make()
        assert axis in {problem.axis for problem in caught.value.problems}


def test_the_device_is_left_alone_without_placement_and_a_loader_comes_back_as_it_is() -> None:
    dataloader = DataLoader(Numbers(4), batch_size=2)
    away = take_loader(dataloader, world=world(device=torch.device("meta")))
    assert {batch.device.type for batch in away} == {"meta"}
    here = take_loader(dataloader, world=world(device=torch.device("meta")), dealing=Dealing(device_placement=False))
    assert {batch.device.type for batch in here} == {"cpu"}
    assert take_loader(here, world=world()) is here
    assert isinstance(here.sampler, SequentialSampler)


def test_a_sampler_of_batches_gives_the_dataset_whole_batches() -> None:
    class Rows(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return torch.tensor(index)

    dataloader = DataLoader(Rows(9), sampler=BatchSampler(SequentialSampler(Rows(9)), 2, False), batch_size=None)
    assert [lists(take_loader(dataloader, world=world(rank, 2)))[-1] for rank in range(2)] == [[8, 0], [1, 2]]


def test_the_rules_can_be_given_with_a_dataset_too() -> None:
    loaders = [make_loader(Numbers(9), world=world(rank, 2), batch_size=2, dealing=Dealing()) for rank in range(2)]
    assert [lists(loader)[-1] for loader in loaders] == [[8, 0], [1, 2]]
    streams = [
        make_loader(Whole(9), world=world(rank, 2), batch_size=2, dealing=Dealing(dispatch_batches=False)) for rank in range(2)
    ]
    for loader in streams:
        trust(loader)
    assert [lists(loader)[-1] for loader in streams] == [[8, 0], [1, 2]]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}, {"batch_size": None}], ids=str)
def test_loaders_that_deal_by_strides_tell_their_repeats_too(options: dict[str, Any]) -> None:
    counts: Counter[int] = Counter()
    for rank in range(3):
        loader = make_loader(Numbers(11), world=world(rank, 3), **{"batch_size": 2} | options)
        for batch in loader:
            assert loader.real is not None
            samples = [batch] if isinstance(batch, int) else batch.tolist()
            counts.update(samples[: loader.real[rank]])
    assert max(counts.values()) == 1
    assert len(counts) == (6 if options.get("drop_last") else 11)
