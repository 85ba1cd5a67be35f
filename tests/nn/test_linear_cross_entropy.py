"""A head and its loss in one equal torch's linear layer and cross-entropy of the whole, gradients too, for any chunk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed import Group, Shard, group_of
from restoke.nn import ParallelLinear, ParallelLinearCrossEntropy, describe, shards_of
from restoke.nn.functional import parallel_cross_entropy, parallel_linear, parallel_linear_cross_entropy
from tests.nn.counted import Largest, collectives, peak
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


def sent(_: None) -> list[list[str]]:
    head = ParallelLinearCrossEntropy(4, 9)
    x, target = torch.randn(4, 4).requires_grad_(), torch.arange(4)
    with collectives() as forward:
        loss = head(x, target)
    with collectives() as backward:
        loss.backward()
    return [forward, backward]


def test_its_collectives_are_the_loss_s_two_and_the_layer_s_one() -> None:
    assert run(2, sent, None) == [[["all_reduce MAX", "all_reduce SUM"], ["all_reduce SUM"]]] * 2


def held(group: Group, dtype: torch.dtype) -> list[float]:
    """The largest tensor made, and the peak over weights, their gradients and features, in chunks of float32."""
    rows, features, classes, chunk = 64, 8, 40_000, 1_000
    shard = Shard(group, 0, classes)
    x, weight = torch.randn(rows, features, dtype=dtype), torch.randn(shard.length, features, dtype=dtype)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    with peak() as bytes_, Largest() as largest:
        parallel_linear_cross_entropy(x, weight, torch.arange(rows), shard=shard, chunk=chunk).backward()
    return [largest.elements, (bytes_[0] - 2 * weight.nbytes - 2 * x.nbytes) / (4 * rows * chunk)]


def test_there_is_never_more_than_one_chunk_of_logits() -> None:
    for largest, chunks in simulate(2, held, torch.float32):
        assert largest == 20_000 * 8
        assert 1 <= chunks < 1.1
    for largest, chunks in simulate(2, held, torch.bfloat16):
        assert largest == 20_000 * 8
        assert 1.4 < chunks < 1.7  # once in each dtype


def narrow(group: Group, autocast: bool) -> list[Any]:
    """Against the layer and the loss one after the other, which round in the same places."""
    generator = torch.Generator().manual_seed(3)
    kind = torch.float32 if autocast else torch.bfloat16
    values = [torch.randn(6, 8, generator=generator).to(kind), torch.randn(30, 8, generator=generator).to(kind)]
    shard, target, found = Shard(group, 0, 30), torch.arange(6), []
    for fused in (True, False):
        x, weight = values[0].clone().requires_grad_(), shard.of(values[1]).clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if fused:
                loss = parallel_linear_cross_entropy(x, weight, target, shard=shard, chunk=4)
            else:
                logits = parallel_linear(x, weight, dim=1, shard=shard)
                loss = parallel_cross_entropy(logits, target)
        loss.backward()
        found.append([loss.detach(), x.grad, weight.grad])
    gaps = [float((a.float() - b.float()).abs().max()) for a, b in zip(*found, strict=True)]
    return [loss.dtype, [each.dtype for each in found[0][1:]] == [kind] * 2, gaps]


@pytest.mark.parametrize("autocast", [False, True])
def test_narrow_products_have_a_loss_in_float32(autocast: bool) -> None:
    for dtype, same, (loss, x, weight) in simulate(2, narrow, autocast):
        assert (dtype, same) == (torch.float32, True)
        assert loss < 1e-6
        assert max(x, weight) < 1e-2


def more_dimensions(group: Group) -> float:
    """Rows of several dimensions, one, and none; each rank's own rows."""
    shard, errors = Shard(group, 0, 7), []
    whole = draw(2, 7, FEATURES)
    for shape in ((2, 3), (4,), ()):
        x, own = draw(1, *shape, FEATURES), shard.of(whole)
        logits = F.linear(x, whole)
        target = torch.randint(7, shape, generator=torch.Generator().manual_seed(1))
        flat = F.cross_entropy(logits.reshape(-1, 7), target.reshape(-1), reduction="none").reshape(shape)
        errors.append(apart(parallel_linear_cross_entropy(x, own, target, shard=shard, reduction="none"), flat))
        soft = logits.softmax(-1)
        flat = F.cross_entropy(logits.reshape(-1, 7), soft.reshape(-1, 7), reduction="none").reshape(shape)
        for given in (soft, describe(shard.along(-1).of(soft), shard.along(-1))):
            errors.append(apart(parallel_linear_cross_entropy(x, own, given, shard=shard, reduction="none"), flat))
    x, target, rows = draw(1, 4, 2, FEATURES), torch.arange(8).reshape(4, 2) % 7, [1, 3]
    found = parallel_linear_cross_entropy(x, shard.of(whole), target, shard=shard, rows=rows)
    mine = slice(0, 1) if group.rank == 0 else slice(1, 4)
    expected = F.cross_entropy(F.linear(x[mine], whole).reshape(-1, 7), target[mine].reshape(-1))
    return max(*errors, apart(found, expected))


def test_rows_of_any_number_of_dimensions() -> None:
    assert max(simulate(2, more_dimensions)) <= 1e-13


def as_module(_: None) -> list[Any]:
    weight = torch.rand(9)
    head = ParallelLinearCrossEntropy(
        4, 9, bias=True, weight=weight, ignore_index=2, label_smoothing=0.1, reduction="sum", chunk=2
    )
    x, target = torch.ones(3, 4), torch.tensor([0, 2, 8])
    loss = head(x, target)
    expected = parallel_cross_entropy(head.linear(x), target, weight, ignore_index=2, label_smoothing=0.1, reduction="sum")
    loss.backward()
    grads = [p.grad is not None for p in head.parameters()]
    return [float((loss - expected).abs()) < 1e-5, grads, sorted(head.state_dict()), list(shards_of(head))]


def test_the_module_has_torch_s_names() -> None:
    names = ["linear.bias", "linear.weight", "weight"]
    assert run(2, as_module, None) == [[True, [True, True], names, ["linear.weight", "linear.bias"]]] * 2


def refusals(group: Group) -> dict[str, str]:
    shard = Shard(group, 0, 10)
    x, weight, target = torch.zeros(3, 4), torch.zeros(shard.length, 4), torch.tensor([0, 9, -100])
    fused = parallel_linear_cross_entropy
    calls = {
        "beyond": lambda: fused(x, weight, torch.tensor([0, 10, 1]), shard=shard),
        "unlike": lambda: fused(x, weight, torch.tensor([group.rank] * 3), shard=shard),
        "too few": lambda: fused(x, weight, target[:2], shard=shard),
        "features": lambda: fused(x[:, :3], weight, target, shard=shard),
        "classes": lambda: fused(x, weight[1:], target, shard=shard),
        "bias": lambda: fused(x, weight, target, shard=shard, linear_bias=torch.zeros(10)),
        "dtype": lambda: fused(x.double(), weight, target, shard=shard),
        "a part": lambda: fused(describe(x[:, :2], Shard(group, 1, 4)), weight[:, :2], target, shard=shard),
        "rows": lambda: fused(x, weight, target, shard=shard, rows=[3]),
        "reduction": lambda: fused(x, weight, target, shard=shard, reduction="avg"),
        "chunk": lambda: fused(x, weight, target, shard=shard, chunk=0),
    }
    return {which: refused(call) for which, call in calls.items()}


def test_what_does_not_fit_is_refused_on_every_rank() -> None:
    said = {
        "beyond": "it is no class, or the ranks hold unlike targets",
        "unlike": "it is no class, or the ranks hold unlike targets",
        "too few": "one target for each row",
        "features": "classes have 4 features",
        "classes": "this rank holds 5 classes of 10",
        "bias": "this rank holds 5 classes of 10",
        "dtype": "the weight is torch.float32",
        "a part": "each class asks for all features",
        "rows": "which add up to all of them",
        "reduction": "Instead: none, mean, sum",
        "chunk": "chunk=0",
    }
    for found in simulate(2, refusals):
        assert {which: said[which] in found[which] for which in said} == dict.fromkeys(said, True), found


def told(_: None) -> str:
    layer = ParallelLinear(4, 10, dim=1)
    return refused(lambda: parallel_linear_cross_entropy(torch.zeros(3, 4), layer.weight, torch.arange(3), shard=None))


def test_a_layer_s_weight_without_its_shard_is_refused() -> None:
    assert all("the weight is one rank's part" in said for said in run(2, told, None))
