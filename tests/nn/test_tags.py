"""TorchShard's words for what is cut, in place, over descriptions that are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from restoke.distributed import group_of
from restoke.nn import (
    ParallelEmbedding,
    ParallelLinear,
    RegisterParallelDim,
    get_parallel_dim,
    plain,
    register_parallel_attribute,
    register_parallel_dim,
    set_attribute,
    shard_of,
    shards_of,
)
from tests.nn.joined import refused, run


def layers() -> list[Any]:
    linear = {dim: ParallelLinear(4, 6, dim=dim) for dim in (None, 0, 1, -1)}
    table = {dim: ParallelEmbedding(4, 6, dim=dim) for dim in (None, 0, 1, -1)}
    x = torch.ones(2, 4)
    weights = [get_parallel_dim(each.weight) for each in (*linear.values(), *table.values())]
    biases = [get_parallel_dim(each.bias) for each in linear.values()]
    return [weights, biases, [get_parallel_dim(each(x)) for each in linear.values()], get_parallel_dim(x)]


def test_layers_say_what_they_were_told() -> None:
    weights = [None, 0, 1, -1] * 2
    assert run(2, layers) == [[weights, [None, None, 1, -1], [None, None, -1, -1], None]] * 2
    assert run(1, layers)[0][2] == [None] * 4


def in_place(width: int) -> list[Any]:
    group = group_of()
    whole = torch.arange(3.0 * width).view(3, width)
    mine = whole.tensor_split([width - width // 2], -1)[group.rank].clone()
    returned = register_parallel_dim(mine, -1)
    shard = shard_of(mine)
    known = [returned is mine, shard.size, get_parallel_dim(mine), torch.equal(plain(mine), shard.of(whole))]
    lost = (mine * 2).flip(0)
    set_attribute(lost, 1)
    again = [get_parallel_dim(lost), shard_of(lost).size]
    register_parallel_dim(lost, None)
    rows = register_parallel_dim(torch.ones(2 - group.rank, 3), 0, size=3)
    return [*known, *again, get_parallel_dim(lost), type(lost) is Tensor, get_parallel_dim(rows), get_parallel_dim(rows + 1)]


@pytest.mark.parametrize("width", [4, 5])
def test_activations_are_told_in_place_and_told_again(width: int) -> None:
    assert run(2, in_place, width) == [[True, width, -1, True, -1, width, None, True, 0, 0]] * 2


def module() -> list[Any]:
    column, row = ParallelLinear(4, 6, dim=1), ParallelLinear(6, 2, dim=0)
    x = torch.ones(2, 4)
    known = column(x)
    found = [shard_of(RegisterParallelDim(-1)(known)).size]
    for layer in (RegisterParallelDim(-1), RegisterParallelDim(-1, size=6)):
        one, (two, three) = layer([known.flip(0), (known.flip(0), 5)])
        found += [shard_of(one).size, shard_of(two).size, three]
        row(one)
    before = known.flip(0)
    RegisterParallelDim(1)(before)
    found.append("made by flip" in refused(shard_of, before))  # it describes what it gives, and leaves what it was given
    found.append(get_parallel_dim(RegisterParallelDim()(known)))
    loss = RegisterParallelDim(-1, size=6)(known.flip(0)).sum()
    loss.backward()
    return [*found, column.weight.grad is not None]


def test_the_layer_describes_tensors_and_lists_of_them() -> None:
    assert run(2, module) == [[6, *[6, 6, 5] * 2, True, None, True]] * 2


class Own(nn.Module):
    def __init__(self, size: int | None) -> None:
        super().__init__()
        lengths = [3, 2]
        self.table = nn.Parameter(torch.ones(lengths[group_of().rank], 4))
        register_parallel_attribute(self.table, 1, size=size)
        self.columns = nn.Parameter(torch.ones(4, lengths[group_of().rank]))
        set_attribute(self.columns, -1, 1)
        self.bias = nn.Parameter(torch.ones(4))
        set_attribute(self.bias, 0)


def own(size: int | None) -> list[Any]:
    model = Own(size)
    shards = {name: (shard.dim, shard.size) for name, shard in shards_of(model).items()}
    return [shards, [get_parallel_dim(each) for each in model.parameters()]]


@pytest.mark.parametrize("size", [None, 5])
def test_parameters_of_one_s_own_layers_are_shards_that_others_know_of(size: int | None) -> None:
    assert run(2, own, size) == [[{"table": (0, 5), "columns": (1, 5)}, [1, -1, 0]]] * 2


def wrong(which: str) -> str:
    rank = group_of().rank
    cases = {
        "uneven": lambda: register_parallel_dim(torch.ones(2, 1 + 2 * rank), -1),
        "size": lambda: register_parallel_dim(torch.ones(2, 4), -1, size=6),
        "dim": lambda: RegisterParallelDim(2),
        "order": lambda: register_parallel_attribute(nn.Parameter(torch.ones(2, 2)), 1, 2),
        "lost": lambda: get_parallel_dim(ParallelLinear(4, 6, dim=1)(torch.ones(2, 4)).flip(0)),
    }
    return refused(cases[which])


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("uneven", "the ranks hold [1, 3] of 4"),
        ("size", "of 6 along dimension -1"),
        ("dim", "None, 0, 1 or -1"),
        ("order", "order_type=2"),
        ("lost", "made by flip"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(which: str, words: str) -> None:
    assert all(words in message for message in run(2, wrong, which))
