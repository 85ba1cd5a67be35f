"""The loss of logits that ranks share equals torch's of the whole: every option, any number of classes over any group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from restoke.distributed import Group, Shard, group_of
from restoke.nn import describe
from restoke.nn.functional import parallel_cross_entropy
from tests.nn.joined import run
from tests.nn.simulated import simulate

F64 = torch.float64
REDUCTIONS = ("none", "mean", "sum")
SIZES = [(8, 2), (10, 4), (9, 4), (3, 4), (101, 3)]


class Draw:
    """Random values that do not depend on what other threads draw."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=self.generator)

    def share(self, *shape: int) -> Tensor:
        return torch.rand(shape, dtype=F64, generator=self.generator)

    def classes(self, shape: tuple[int, ...], classes: int) -> Tensor:
        return torch.randint(classes, shape, generator=self.generator)


@frozen(eq=False)
class Case:
    """Options, and whether some rows are to be ignored."""

    how: dict[str, Any]
    ignored: bool

    def targets(self, draw: Draw, shape: tuple[int, ...], classes: int) -> Tensor:
        target = draw.classes(shape, classes)
        if self.ignored:
            target.view(-1)[::3] = self.how["ignore_index"]
        return target


def cases(weight: Tensor) -> Iterator[Case]:
    for smoothing, weighted, ignored, reduction in product((0.0, 0.1, 0.5), (False, True), (False, True), REDUCTIONS):
        ignore = 1 if ignored and weighted else -100
        how = {"ignore_index": ignore, "reduction": reduction, "label_smoothing": smoothing}
        yield Case({"weight": weight if weighted else None, **how}, ignored)


def both(
    draw: Draw, logits: Tensor, target: Tensor, shard: Shard, how: dict[str, Any], own_target: Tensor | None = None
) -> tuple[float, float]:
    """How far the loss and the gradient of this rank's part are from those of the whole."""
    whole = logits.clone().requires_grad_()
    part = shard.of(logits).clone().requires_grad_()
    expected = F.cross_entropy(whole, target, **how)
    loss = parallel_cross_entropy(describe(part, shard), target if own_target is None else own_target, **how)
    upstream = draw.share(*expected.shape)
    expected.backward(upstream)
    loss.backward(upstream)
    assert loss.shape == expected.shape
    return apart(loss.detach(), expected.detach()), apart(part.grad, shard.of(whole.grad))


def apart(value: Tensor | None, expected: Tensor | None) -> float:
    """The largest difference, relative to the largest value if that is above 1."""
    assert value is not None
    assert expected is not None
    assert value.shape == expected.shape
    assert value.dtype == expected.dtype
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1)) if value.numel() else 0.0


def grid(group: Group | None, classes: int, scale: float) -> list[tuple[float, float]]:
    """Every combination of options on one rank; each rank draws the same values."""
    group = group or group_of()
    assert group.size > 1
    draw, shard, found = Draw(classes), Shard(group, 1, classes), []
    for case in cases(draw.share(classes) + 0.5):
        logits = draw.normal(7, classes) * scale
        found.append(both(draw, logits, case.targets(draw, (7,), classes), shard, case.how))
        if not case.ignored:
            target = draw.share(7, classes)  # rows need not add up to 1
            found.append(both(draw, logits, target, shard, case.how))
            found.append(both(draw, logits, target, shard, case.how, describe(shard.of(target), shard)))
    return found


def worst(ranks: list[list[tuple[float, float]]]) -> tuple[float, float]:
    errors = [error for rank in ranks for error in rank]
    return max(loss for loss, _ in errors), max(grad for _, grad in errors)


@pytest.mark.parametrize(("classes", "n"), SIZES)
def test_equals_torch_on_real_ranks(classes: int, n: int) -> None:
    loss, grad = worst(run(n, grid, None, classes, 3.0))
    assert loss <= 1e-12
    assert grad <= 1e-14


@pytest.mark.parametrize(("classes", "n"), [(5, 8), (3, 8), (64, 8)])
def test_equals_torch_on_eight_simulated_ranks_some_of_them_empty(classes: int, n: int) -> None:
    loss, grad = worst(simulate(n, grid, classes, 3.0))
    assert loss <= 1e-12
    assert grad <= 1e-14
