"""Groups of neighbouring ranks, their peers, the default, and the sizes that no world divides into."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist

from restoke import distributed as rd
from restoke.distributed import Group, group_of
from restoke.nn import ParallelLinear
from tests.nn.joined import refused, run


def laid_out(size: int | None) -> list[Any]:
    group = group_of(size)
    peers = [] if group.peers is None else [list(group.peers.ranks), group.peers.rank]
    return [list(group.ranks), group.rank, group.replicas, peers]


def test_four_ranks_in_groups_of_each_size() -> None:
    assert run(4, laid_out, None) == [[[0, 1, 2, 3], rank, 1, []] for rank in range(4)]
    assert run(4, laid_out, 2) == [
        [[0, 1], 0, 2, [[0, 2], 0]],
        [[0, 1], 1, 2, [[1, 3], 0]],
        [[2, 3], 0, 2, [[0, 2], 1]],
        [[2, 3], 1, 2, [[1, 3], 1]],
    ]
    assert run(4, laid_out, 1) == [[[rank], 0, 4, [[0, 1, 2, 3], rank]] for rank in range(4)]


def sums() -> list[float]:
    group = group_of(2)
    assert group.peers is not None
    ours, peers = (torch.tensor([float(2 ** dist.get_rank())]) for _ in range(2))
    dist.all_reduce(ours, group=group.handle)
    dist.all_reduce(peers, group=group.peers.handle)
    return [float(ours), float(peers)]


def test_what_is_sent_in_a_group_stays_there() -> None:
    assert run(4, sums) == [[3, 5], [3, 10], [12, 5], [12, 10]]


@pytest.mark.parametrize("size", [3, 0, -1, 5, 8, True, 2.0, "2"])
def test_a_size_that_does_not_divide_the_world_is_refused_on_every_rank(size: Any) -> None:
    for message in run(4, refused, group_of, size):
        assert message == (
            f"WorldError: group_size={size!r}: 4 ranks cannot be divided into groups of that size. Instead: one of 1, 2, 4."
        )
    assert all("WorldError" in message for message in run(4, refused, rd.init_process_group, size))


def defaults() -> list[Any]:
    try:
        before = [rd.is_initialized(), rd.get_world_size(), rd.get_rank()]
        group = rd.init_process_group(2)
        again = rd.init_process_group(2) is group
        other = refused(rd.init_process_group, 4)
        layer = ParallelLinear(4, 4, dim=1)
        chosen = [rd.is_initialized(), rd.get_world_size(), rd.get_rank(), tuple(layer.weight.shape)]
        explicit = [rd.get_world_size(group_of()), rd.get_rank(group_of())]
    finally:
        rd.destroy_process_group()
    return [
        before,
        chosen,
        explicit,
        again,
        "groups of 2 were chosen before" in other,
        rd.get_world_size(),
        layer.group is group,
    ]


def test_the_default_is_all_ranks_until_one_is_chosen() -> None:
    for rank, answer in enumerate(run(4, defaults)):
        assert answer == [[False, 4, rank], [True, 2, rank % 2, (2, 4)], [4, rank], True, True, 4, True]


def test_alone_a_group_is_this_process() -> None:
    assert group_of().ranks == group_of(1).ranks == (0,)
    assert "there is no process group yet" in refused(group_of, 2)


def same() -> bool:
    return group_of(2) is group_of(2)


def test_groups_are_made_once_and_not_copied() -> None:
    assert run(2, same) == [True, True]
    group = Group((0, 1), 0)
    assert copy.deepcopy([group])[0] is group


def test_everything_that_is_announced_is_there() -> None:
    names: dict[str, Any] = {}
    exec("from restoke.distributed import *\nfrom restoke.nn import *\nfrom restoke.nn.functional import *", names)
    assert {*rd.__all__} <= names.keys()


def pickled() -> str:
    return refused(pickle.dumps, ParallelLinear(2, 4, dim=1))


def test_a_layer_that_ranks_share_says_how_it_is_saved_and_a_whole_one_is_pickled() -> None:
    for said in run(2, pickled):
        assert said.startswith("WorldError: group='ranks (0, 1)': what is pickled")
        assert said.endswith("session.save(folder).")
    assert pickle.loads(pickle.dumps(ParallelLinear(2, 4, dim=1, group=group_of(1)))).out_features == 4
