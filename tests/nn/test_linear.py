"""The sharded linear layer equals torch's on full tensors, in values and gradients, for any sizes over any group."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from restoke.distributed import group_of
from restoke.nn import ParallelLinear, get_parallel_dim, shard_of, shards_of
from restoke.nn.functional import parallel_linear
from tests.nn.joined import refused, run

F64 = torch.float64


def whole_layer(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(inputs, outputs, bias, dtype=F64)


def parted(whole: nn.Linear, dim: int | None, group: Any = None) -> ParallelLinear:
    layer = ParallelLinear(whole.in_features, whole.out_features, whole.bias is not None, dim, group=group, dtype=F64)
    with torch.no_grad():
        for name, param in layer.named_parameters():
            shard = layer.shards[name]
            full = getattr(whole, name)
            param.copy_(full if shard is None else shard.of(full))
    return layer


def step(layer: Any, x: Tensor, weigh: Tensor) -> tuple[Tensor, Tensor]:
    """The output, whole, and the input's gradient, of a loss that weighs each output."""
    x = x.clone().requires_grad_()
    out = layer(x)
    shard = shard_of(out)
    ((out * (weigh if shard is None else shard.along(-1).of(weigh))).sum()).backward()
    return out.detach(), x.grad  # type: ignore[return-value]


def apart(value: Tensor, expected: Tensor) -> float:
    assert value.shape == expected.shape
    return float((value - expected).abs().max()) if value.numel() else 0.0


def errors(dim: int | None, inputs: int, outputs: int, bias: bool, shape: tuple[int, ...], size: int | None) -> float:
    group = group_of(size)
    whole = whole_layer(inputs, outputs, bias)
    layer = parted(whole, dim, group)
    x, weigh = torch.randn(*shape, inputs, dtype=F64), torch.randn(outputs, dtype=F64)
    out, grad = step(layer, x, weigh)
    expected, expected_grad = step(whole, x, weigh)
    found = [apart(grad, expected_grad)]
    column = layer.shards["weight"] if dim in (1, -1) else None
    found.append(apart(out, expected if column is None else column.along(-1).of(expected)))
    for name, param in layer.named_parameters():
        shard, full = layer.shards[name], getattr(whole, name).grad
        found.append(apart(param.grad, full if shard is None else shard.of(full)))
    return max(found)


GRID = [(6, 8, True, (5,)), (7, 10, False, (2, 3)), (5, 3, True, (4,)), (3, 1, True, (2, 1, 2)), (1, 3, True, ())]


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_equals_torch_on_any_sizes(n: int, dim: int | None) -> None:
    for sizes in GRID:
        assert max(run(n, errors, dim, *sizes, None)) <= 1e-12


@pytest.mark.parametrize(("dim", "size"), [(0, 4), (1, 4), (0, 2), (1, 2)])
def test_equals_torch_on_four_ranks_and_in_two_groups_of_two(dim: int, size: int) -> None:
    assert max(run(4, errors, dim, 7, 10, True, (5,), size)) <= 1e-12
    assert max(run(4, errors, dim, 3, 2, True, (5,), size)) <= 1e-12


def shapes_in_groups() -> list[Any]:
    group = group_of(2)
    column, row = ParallelLinear(8, 8, dim=1, group=group), ParallelLinear(8, 8, dim=0, group=group)
    return [tuple(column.weight.shape), tuple(column.bias.shape), tuple(row.weight.shape), tuple(row.bias.shape)]


def test_a_group_of_two_among_four_ranks_holds_halves() -> None:
    assert run(4, shapes_in_groups) == [[(4, 8), (4,), (8, 4), (8,)]] * 4


def mlp(outputs: int) -> float:
    torch.manual_seed(3)
    whole = nn.Sequential(nn.Linear(6, outputs, dtype=F64), nn.GELU(), nn.Linear(outputs, 5, dtype=F64))
    ours = nn.Sequential(parted(whole[0], 1), nn.GELU(), parted(whole[2], 0))
    x, weigh = torch.randn(4, 6, dtype=F64), torch.randn(5, dtype=F64)
    (out, grad), (expected, expected_grad) = step(ours, x, weigh), step(whole, x, weigh)
    return max(apart(out, expected), apart(grad, expected_grad))


@pytest.mark.parametrize("outputs", [8, 7, 1])
def test_by_columns_then_by_rows_needs_no_gathering_between(outputs: int) -> None:
    assert max(run(2, mlp, outputs)) <= 1e-12


def bias_by_rows() -> list[Any]:
    torch.manual_seed(dist.get_rank())
    layer = ParallelLinear(4, 3, dim=0)
    x = torch.ones(5, 4)
    layer(x).sum().backward()
    return [layer.bias.tolist(), layer.bias.grad.tolist(), list(shards_of(layer)), get_parallel_dim(layer.bias)]


def test_the_bias_of_a_layer_by_rows_is_alike_on_unlike_seeds_and_added_once() -> None:
    first, second = run(2, bias_by_rows)
    assert first == second
    assert first[1:] == [[5.0] * 3, ["weight"], None]


def refusals(which: str) -> str:
    group = group_of()
    column, row = ParallelLinear(6, 8, dim=1), ParallelLinear(8, 6, dim=0)
    part = column(torch.ones(2, 6))
    bad = {
        "columns of a part": lambda: ParallelLinear(4, 2, dim=1)(part),
        "rows of an undescribed part": lambda: row(torch.ones(2, 4)),
        "rows of a lost part": lambda: row(part.flip(0).roll(1, -1)),
        "rows of another part": lambda: ParallelLinear(10, 2, dim=0)(part),
        "rows of a part along the batch": lambda: row(ParallelLinear(3, 8, dim=1)(torch.ones(8, 3)).transpose(0, 1)),
        "columns of too many": lambda: column(torch.ones(2, 7)),
        "dim 2": lambda: ParallelLinear(4, 4, dim=2),
        "dim True": lambda: ParallelLinear(4, 4, dim=True),
        "no inputs": lambda: ParallelLinear(0, 4),
        "no outputs": lambda: ParallelLinear(4, 0, dim=1),
        "another weight": lambda: parallel_linear(torch.ones(2, 6), column.weight, dim=0, shard=column.shards["weight"]),
        "uneven": lambda: parallel_linear(torch.ones(2, 6), torch.ones(1 + 3 * group.rank, 6), dim=1),
    }
    return refused(bad[which])


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("columns of a part", "each output asks for all inputs"),
        ("rows of an undescribed part", "nothing says that this tensor is a part"),
        ("rows of a lost part", "it was made by"),
        ("rows of another part", "it is a part of 8 along dimension -1"),
        ("rows of a part along the batch", "made by transpose"),
        ("columns of too many", "the weight has 6 inputs"),
        ("dim 2", "Instead: None, 0, 1 or -1"),
        ("dim True", "Instead: None, 0, 1 or -1"),
        ("no inputs", "in_features=0"),
        ("no outputs", "out_features=0"),
        ("another weight", "the weight is cut along its dimension 0"),
        ("uneven", "the ranks hold [1, 4] of 5"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(which: str, said: str) -> None:
    assert all(said in message and "SpecError" in message for message in run(2, refusals, which))


def functional() -> list[float]:
    whole = whole_layer(5, 7)
    group = group_of()
    found = []
    for dim in (None, 0, 1, -1):
        layer = parted(whole, dim)
        x = torch.randn(3, 5, dtype=F64)
        out = parallel_linear(x, layer.weight.detach(), layer.bias, dim, group=group)
        column = layer.shards["weight"] if dim in (1, -1) else None
        found.append(apart(out, whole(x) if column is None else column.along(-1).of(whole(x))))
    return found


def test_the_functional_form_asks_the_ranks_for_lengths_that_nobody_said() -> None:
    assert max(max(found) for found in run(2, functional)) <= 1e-12


def copied() -> list[Any]:
    layer = ParallelLinear(4, 6, dim=1)
    other = copy.deepcopy(layer)
    x = torch.ones(2, 4)
    same = torch.equal(layer(x), other(x)) and other.group is layer.group
    return [same, get_parallel_dim(other.weight), get_parallel_dim(other(x)), list(shards_of(other)), repr(other)]


def test_a_copy_of_a_layer_knows_what_the_layer_knew() -> None:
    said = "ParallelLinear(in_features=4, out_features=6, bias=True, dim=1, ranks=2)"
    assert run(2, copied) == [[True, 1, -1, ["weight", "bias"], said]] * 2


def autocast(dim: int) -> list[Any]:
    layer = ParallelLinear(4, 6, dim=dim)
    x = torch.ones(2, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    out.float().sum().backward()
    return [out.dtype, x.grad.dtype, layer.weight.grad.dtype, layer.bias.grad.dtype]


@pytest.mark.parametrize("dim", [0, 1])
def test_autocast_gives_the_types_that_torch_s_layer_gives(dim: int) -> None:
    assert run(2, autocast, dim) == [[torch.bfloat16, torch.float32, torch.float32, torch.float32]] * 2


def test_the_plain_layer_draws_what_torch_s_draws() -> None:
    torch.manual_seed(1)
    ours = ParallelLinear(5, 4)
    torch.manual_seed(1)
    theirs = nn.Linear(5, 4)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
