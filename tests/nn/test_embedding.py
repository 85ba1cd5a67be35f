"""The sharded embedding equals torch's on full tensors with every option, in values, gradients and what it does in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from restoke.distributed import group_of
from restoke.nn import ParallelEmbedding, get_parallel_dim, shard_of, shards_of
from restoke.nn.functional import parallel_embedding
from tests.nn.joined import refused, run

F64 = torch.float64


def pair(rows: int, columns: int, dim: int | None, size: int | None, **options: Any) -> tuple[ParallelEmbedding, nn.Embedding]:
    torch.manual_seed(5)
    whole = nn.Embedding(rows, columns, dtype=F64, **options)
    ours = ParallelEmbedding.from_pretrained(whole.weight.detach().clone(), False, dim=dim, group=group_of(size), **options)
    return ours, whole


def step(layer: Any, ids: Tensor, weigh: Tensor) -> Tensor:
    out = layer(ids)
    (out * weigh).sum().backward()
    return out.detach()  # type: ignore[no-any-return]


def apart(value: Tensor, expected: Tensor) -> float:
    assert value.shape == expected.shape
    return float((value - expected).abs().max()) if value.numel() else 0.0


def errors(dim: int | None, rows: int, columns: int, size: int | None, options: dict[str, Any]) -> float:
    ours, whole = pair(rows, columns, dim, size, **options)
    ids = torch.randint(rows, (4, 3))
    ids[0, 0], ids[-1, -1] = 0, rows - 1
    weigh = torch.randn(columns, dtype=F64)
    found = [apart(step(ours, ids, weigh), step(whole, ids, weigh))]
    shard = ours.shards["weight"]
    for value, expected in ((ours.weight.grad, whole.weight.grad), (ours.weight.detach(), whole.weight.detach())):
        assert value.is_sparse == expected.is_sparse
        full = expected.to_dense()
        found.append(apart(value.to_dense(), full if shard is None else shard.of(full)))
    if options.get("sparse") and dim == 0:
        touched = {int(row) + shard.start for row in ours.weight.grad.coalesce().indices()[0]}
        assert touched == {int(row) for row in ids.unique() if shard.start <= row < shard.start + shard.length}
    return max(found)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"padding_idx": 1},
    {"padding_idx": -1},
    {"scale_grad_by_freq": True},
    {"sparse": True},
    {"max_norm": 1.0},
    {"max_norm": 1.5, "norm_type": 1.0},
    {"max_norm": 0.9, "norm_type": float("inf")},
    {"padding_idx": 0, "max_norm": 0.5, "scale_grad_by_freq": True},
]


def all_options(dim: int | None, size: int | None) -> list[float]:
    shapes = [(9, 5), (2, 1)]
    return [errors(dim, *shape, size, options) for shape in shapes for options in OPTIONS]


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_equals_torch_with_every_option_on_even_uneven_and_empty_shards(n: int, dim: int | None) -> None:
    assert max(max(found) for found in run(n, all_options, dim, None)) <= 1e-12


@pytest.mark.parametrize(("dim", "size"), [(0, 4), (1, 2)])
def test_equals_torch_on_four_ranks(dim: int, size: int) -> None:
    assert max(max(found) for found in run(4, all_options, dim, size)) <= 1e-12


def made() -> list[Any]:
    rows, columns = ParallelEmbedding(8, 4, 5, dim=0), ParallelEmbedding(8, 4, 5, dim=1)
    whole = ParallelEmbedding(8, 4, 5)
    zero = [int((layer.weight == 0).all(1).sum()) for layer in (rows, columns, whole)]
    out = [shard_of(layer(torch.arange(8))) for layer in (rows, columns)]
    dims = [get_parallel_dim(layer.weight) for layer in (rows, columns, whole)]
    return [tuple(rows.weight.shape), tuple(columns.weight.shape), zero, out, dims, list(shards_of(rows)), repr(rows)]


def test_the_padding_row_is_zero_on_the_rank_that_has_it() -> None:
    said = "ParallelEmbedding(8, 4, padding_idx=5, dim=0, ranks=2)"
    known = [[None, None], [0, 1, None], ["weight"], said]
    assert run(2, made) == [[(4, 4), (8, 2), [0, 1, 1], *known], [(4, 4), (8, 2), [1, 1, 1], *known]]


def refusals(which: str, dim: int) -> str:
    layer = ParallelEmbedding(5, 3, dim=dim)
    bad = {
        "too large": lambda: layer(torch.tensor([0, 5])),
        "negative": lambda: layer(torch.tensor([[-1]])),
        "floats": lambda: layer(torch.ones(2)),
        "padding": lambda: ParallelEmbedding(5, 3, 5, dim=dim),
        "weight": lambda: ParallelEmbedding(5, 3, dim=dim, _weight=torch.ones(3, 3)),
        "rows": lambda: ParallelEmbedding(0, 3, dim=dim),
        "dim": lambda: ParallelEmbedding(5, 3, dim=3),
        "norm": lambda: parallel_embedding(torch.arange(2), layer.weight, None, 1.0, 0.0, dim=dim, group=layer.group),
    }
    return refused(bad[which])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("too large", "DataError: input='ids 0 to 5': the table has 5 rows"),
        ("negative", "DataError: input='ids -1 to -1'"),
        ("floats", "DataError: input=torch.float32"),
        ("padding", "SpecError: padding_idx=5: the whole table has 5 rows"),
        ("weight", "it is the whole table"),
        ("rows", "num_embeddings=0"),
        ("dim", "None, 0, 1 or -1"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(which: str, said: str, dim: int) -> None:
    assert all(said in message for message in run(2, refusals, which, dim))


def test_rows_that_are_cut_are_not_measured_by_a_power_that_is_none() -> None:
    assert all("norm_type=0.0" in message for message in run(2, refusals, "norm", 1))


def no_ids(dim: int) -> tuple[int, ...]:
    return tuple(ParallelEmbedding(5, 3, dim=dim)(torch.empty(0, 2, dtype=torch.int64)).shape)


@pytest.mark.parametrize("dim", [0, 1])
def test_no_ids_give_no_rows(dim: int) -> None:
    assert run(2, no_ids, dim) == [(0, 2, 3)] * 2


def test_the_plain_layer_draws_what_torch_s_draws() -> None:
    torch.manual_seed(1)
    ours = ParallelEmbedding(5, 4, 2)
    torch.manual_seed(1)
    assert torch.equal(ours.weight, nn.Embedding(5, 4, 2).weight)
