"""A head and its loss in one equal torch's linear layer and cross-entropy of the whole, gradients too, for any chunk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed import Shard, group_of
from restoke.nn import ParallelLinear, ParallelLinearCrossEntropy, describe
from restoke.nn.functional import parallel_cross_entropy, parallel_linear, parallel_linear_cross_entropy
from tests.nn.joined import refused, run
from tests.nn.simulated import simulate

F64 = torch.float64
ROWS, FEATURES = 6, 5


def apart(value: Tensor | None, expected: Tensor | None) -> float:
    assert value is not None
    assert expected is not None
    assert value.shape == expected.shape
    assert value.dtype == expected.dtype
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1)) if value.numel() else 0.0


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def compare(shard: Shard, target: Tensor, bias: bool, scale: float, how: dict[str, Any], chunk: int | None) -> float:
    """The largest error of loss and gradients on this rank. The logits are about N(0, scale)."""
    whole = [draw(1, *target.shape[:1], FEATURES) * scale, draw(2, shard.size, FEATURES) / FEATURES**0.5]
    whole += [draw(3, shard.size)] if bias else []
    own = [whole[0], *(shard.of(each) for each in whole[1:])]
    whole, own = [[each.clone().requires_grad_() for each in these] for these in (whole, own)]
    expected = F.cross_entropy(F.linear(*whole), target, **how)
    told = {"linear_bias": own[2]} if bias else {}
    loss = parallel_linear_cross_entropy(own[0], own[1], target, shard=shard, chunk=chunk, **told, **how)
    upstream = draw(4, *expected.shape)
    expected.backward(upstream)
    loss.backward(upstream)
    errors = [apart(loss.detach(), expected.detach()), apart(own[0].grad, whole[0].grad)]
    return max(errors + [apart(part.grad, shard.of(all_.grad)) for part, all_ in zip(own[1:], whole[1:], strict=True)])


def cases(classes: int) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    weight = draw(5, classes).abs() + 0.5
    for smoothing, weighted, kind, reduction in product((0.0, 0.1), (False, True), "iks", ("none", "mean", "sum")):
        how = {"weight": weight if weighted else None, "reduction": reduction, "label_smoothing": smoothing}
        target = torch.arange(ROWS) * 7 % classes
        if kind == "i":
            target[::3] = -100
        yield (draw(6, ROWS, classes).softmax(1) if kind == "s" else target), how


def grid(group: Any, classes: int) -> float:
    shard = Shard(group or group_of(), 0, classes)
    errors = []
    for number, (target, how) in enumerate(cases(classes)):
        errors.append(compare(shard, target, number % 2 == 0, 3.0, how, (None, 1, 2, 3)[number % 4]))
    return max(errors)


@pytest.mark.parametrize(("classes", "n"), [(10, 4), (3, 4), (101, 3)])
def test_equals_torch_on_real_ranks(classes: int, n: int) -> None:
    assert max(run(n, grid, None, classes)) <= 1e-13


def test_equals_torch_on_eight_simulated_ranks_some_of_them_empty() -> None:
    assert max(simulate(8, grid, 5)) <= 1e-13


def alone() -> float:
    return max(compare(Shard(group_of(1), 0, 11), target, True, 3.0, how, 4) for target, how in cases(11))


def test_equals_torch_on_one_rank_where_only_the_chunks_matter() -> None:
    assert max(run(2, alone)) <= 1e-13
