"""Groups of ranks take the place of ranks: the same samples within a group, each once over the groups, as torch deals them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from restoke import distributed
from restoke.data import DistributedGroupSampler, Loader, make_loader, take_loader
from restoke.distributed.groups import Group
from restoke.errors import DataError
from restoke.world import World
from tests.data.loading import Numbers, flat, lists, world
from tests.ranks import run

LENGTHS, GROUPS = st.integers(0, 40), st.integers(1, 6)
HOW = {"shuffle": st.booleans(), "seed": st.integers(0, 3), "drop_last": st.booleans()}


def group(groups: int, ranks: int, number: int) -> Group:
    """That of rank `number`, without processes."""
    first = number // ranks * ranks
    peers = Group(tuple(range(number % ranks, groups * ranks, ranks)), number // ranks) if groups > 1 else None
    return Group(tuple(range(first, first + ranks)), number % ranks, None, peers)


def samplers(length: int, groups: int, ranks: int = 1, **how: Any) -> list[DistributedGroupSampler]:
    """One for each rank."""
    world = range(groups * ranks)
    return [DistributedGroupSampler(Numbers(length), group=group(groups, ranks, number), **how) for number in world]


@given(length=LENGTHS, groups=GROUPS, ranks=st.integers(1, 3), epoch=st.integers(0, 3), how=st.fixed_dictionaries(HOW))
@settings(max_examples=200)
def test_ranks_of_a_group_draw_what_torch_gives_one_of_as_many_ranks(
    length: int, groups: int, ranks: int, epoch: int, how: dict[str, Any]
) -> None:
    for number, sampler in enumerate(samplers(length, groups, ranks, **how)):
        torchs: DistributedSampler[int] = DistributedSampler(Numbers(max(length, 1)), groups, number // ranks, **how)
        torchs.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert list(sampler) == (list(torchs) if length else [])
        assert len(sampler) == (len(torchs) if length else 0)
        assert (sampler.num_replicas, sampler.rank, sampler.group_size) == (groups, number // ranks, ranks)


@given(
    length=LENGTHS,
    groups=GROUPS,
    others=GROUPS,
    more=GROUPS,
    cuts=st.tuples(*[st.integers(0, 9)] * 2),
    how=st.fixed_dictionaries(HOW),
)
@settings(max_examples=200)
def test_an_epoch_that_goes_on_with_other_groups_draws_each_sample_once(
    length: int, groups: int, others: int, more: int, cuts: tuple[int, int], how: dict[str, Any]
) -> None:
    drawn: list[int] = []
    state = None
    for number, cut in zip((groups, others, more), (*cuts, 40), strict=True):
        parts = samplers(length, number, **how)
        for sampler in parts:
            if state is not None:
                sampler.load_state_dict(state)
        own = [list(sampler) for sampler in parts]
        taken = min(cut, len(own[0]))
        drawn += [sample for turn in zip(*(part[:taken] for part in own), strict=True) for sample in turn]
        for sampler in parts:
            sampler.count(taken)
        states = [sampler.state_dict() for sampler in parts]
        assert all(each == states[0] for each in states)
        state = states[0]
    counts = Counter(drawn)
    assert len(drawn) - length < max(groups, others, more)
    if how["drop_last"]:
        assert length - len(counts) < more
        assert sum(counts.values()) == len(counts)
    else:
        assert set(counts) == set(range(length))
    assert drawn[: min(length, len(drawn))] == [int(index) for index in _order(length, how)][: len(drawn)]


def _order(length: int, how: dict[str, Any]) -> list[int]:
    sampler = DistributedGroupSampler(Numbers(length), 1, 0, **how)
    return list(sampler)


@given(length=LENGTHS, groups=GROUPS, cut=st.integers(0, 12), how=st.fixed_dictionaries(HOW))
def test_it_goes_on_as_if_never_stopped_with_the_same_groups(length: int, groups: int, cut: int, how: dict[str, Any]) -> None:
    for number in range(groups):
        whole = DistributedGroupSampler(Numbers(length), groups, number, **how)
        whole.set_epoch(2)
        all_of_it = list(whole)
        taken = min(cut, len(all_of_it))
        whole.count(taken)
        resumed = DistributedGroupSampler(Numbers(length), groups, number, **how)
        resumed.load_state_dict(whole.state_dict())
        assert resumed.epoch == 2
        assert len(resumed) == len(all_of_it) - taken
        assert list(resumed) == list(resumed) == all_of_it[taken:]
        resumed.set_epoch(2)
        assert list(resumed) == all_of_it[taken:]
        resumed.set_epoch(3)
        whole.set_epoch(3)
        assert list(resumed) == list(whole)


def loader(length: int, groups: int, ranks: int, number: int, size: int = 2, **options: Any) -> Loader:
    sampler = DistributedGroupSampler(Numbers(length), group=group(groups, ranks, number))
    here = World(number, groups * ranks, number, groups * ranks, torch.device("cpu"))
    return make_loader(Numbers(length), world=here, batch_size=size, sampler=sampler, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_ranks_of_a_group_the_same_batches_and_groups_different_ones(workers: int) -> None:
    epochs = [[lists(own), lists(own)] for own in (loader(21, 2, 2, number, num_workers=workers) for number in range(4))]
    assert epochs[0] == epochs[1] != epochs[2] == epochs[3]
    assert epochs[0][0] != epochs[0][1]
    for epoch in range(2):
        seen = Counter(sample for ranks in (0, 2) for batch in epochs[ranks][epoch] for sample in batch)
        assert set(seen) == set(range(21))
        assert sum(seen.values()) == 22


@pytest.mark.parametrize(("groups", "ranks"), [(2, 2), (4, 1), (1, 4), (3, 1)])
def test_a_loader_goes_on_at_another_number_of_groups(groups: int, ranks: int) -> None:
    states, seen = [], []
    for number in range(4):
        own = loader(24, 2, 2, number)
        batches = iter(own)
        taken = [next(batches) for _ in range(3)]
        states.append({name: value for name, value in own.state_dict().items() if name != "seeds"})
        seen += flat(taken) if number in (0, 2) else []
    assert states[0] == states[1] == states[2] == states[3]
    for number in range(0, groups * ranks, ranks):
        own = loader(24, groups, ranks, number)
        own.load_state_dict(states[0] | {"seeds": None})
        seen += flat(own)
        assert own.epoch == 1
    assert sorted(seen) == list(range(24))


def test_augmentation_in_workers_is_alike_within_a_group() -> None:
    class Noisy(Numbers):
        def __getitem__(self, index: int) -> int:
            return int(torch.randint(1 << 40, ()))

    def drawn(number: int) -> list[int]:
        sampler = DistributedGroupSampler(Noisy(8), group=group(2, 2, number))
        here = World(number, 4, number, 4, torch.device("cpu"))
        return flat(make_loader(Noisy(8), world=here, batch_size=2, sampler=sampler, num_workers=1, seed=5))

    first, second, third = (drawn(number) for number in (0, 1, 2))
    assert first == second != third


def test_batches_of_its_samples_and_a_dataloader_with_it_are_this_groups_own() -> None:
    for number in range(4):
        here = World(number, 4, number, 4, torch.device("cpu"))
        sampler = DistributedGroupSampler(Numbers(12), group=group(2, 2, number))
        expected = [list(sampler)[first : first + 3] for first in (0, 3)]
        assert lists(make_loader(Numbers(12), world=here, batch_sampler=BatchSampler(sampler, 3, False))) == expected
        sampler = DistributedGroupSampler(Numbers(12), group=group(2, 2, number))
        torchs: Any = torch.utils.data.DataLoader(Numbers(12), batch_size=3, sampler=sampler)
        assert lists(torchs) == expected
        assert lists(take_loader(torchs, world=here)) == expected


def test_a_world_whose_tensor_axis_is_these_groups_takes_them() -> None:
    for number in range(4):
        sampler = DistributedGroupSampler(Numbers(12), group=group(2, 2, number))
        here, expected = World(number, 4, number, 4, torch.device("cpu"), None, 2), list(sampler)
        assert flat(make_loader(Numbers(12), world=here, sampler=sampler, batch_size=2)) == expected


def test_groups_that_the_world_has_not_are_refused() -> None:
    sampler = DistributedGroupSampler(Numbers(12), group=group(2, 2, 0))
    with pytest.raises(DataError, match=r"num_replicas=2.*data rank 0 of 3"):
        make_loader(Numbers(12), world=world(0, 6), sampler=sampler, batch_size=2)
    with pytest.raises(DataError, match="groups that divide the ranks"):
        make_loader(Numbers(12), world=world(0, 3), sampler=sampler, batch_size=2)
    with pytest.raises(DataError, match="tensor=2"):
        make_loader(Numbers(12), world=World(0, 8, 0, 8, torch.device("cpu"), None, 4), sampler=sampler, batch_size=2)
    with pytest.raises(DataError, match="it counts groups, and there are 2 of 2 ranks"):
        DistributedGroupSampler(Numbers(12), 4, 0, group=group(2, 2, 0))


@pytest.mark.parametrize(
    ("setting", "axis"),
    [({"num_replicas": 0, "rank": 0}, "num_replicas"), ({"num_replicas": 2, "rank": 2}, "rank"), ({"seed": -1}, "seed")]
    + [({name: 1}, name) for name in ("shuffle", "drop_last")],
)
def test_impossible_settings_are_refused(setting: dict[str, Any], axis: str) -> None:
    with pytest.raises(DataError, match=axis):
        DistributedGroupSampler(Numbers(4), **setting)


def test_states_of_other_samples_and_damaged_ones_are_refused_and_change_nothing() -> None:
    sampler = DistributedGroupSampler(Numbers(8), 2, 0)
    sampler.set_epoch(4)
    sampler.count(2)
    state = sampler.state_dict()
    with pytest.raises(DataError, match="2 are left"):
        sampler.count(3)
    for name, other in (("samples", 9), ("seed", 1), ("shuffle", False), ("drop_last", True), ("position", -1), ("epoch", "x")):
        fresh = DistributedGroupSampler(Numbers(8), 2, 0)
        with pytest.raises(DataError, match=name):
            fresh.load_state_dict(state | {name: other})
        assert (fresh.epoch, fresh.position) == (0, 0)
    with pytest.raises(DataError, match="it lacks position"):
        sampler.load_state_dict({name: value for name, value in state.items() if name != "position"})


def on_ranks(size: int) -> tuple[list[int], int]:
    distributed.destroy_process_group()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    distributed.init_process_group(size)
    try:
        sampler = DistributedGroupSampler(Numbers(10))
        return list(sampler), sampler.group_size
    finally:
        distributed.destroy_process_group()


def test_groups_are_the_default_ones() -> None:
    first, second = run(2, on_ranks, 2)
    assert first == second == (first[0], 2)
    assert sorted(first[0]) == list(range(10))
    first, second = run(2, on_ranks, 1)
    assert sorted(first[0] + second[0]) == list(range(10))
    assert first[1] == second[1] == 1
