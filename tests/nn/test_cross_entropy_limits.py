"""What the loss of sharded logits sends, keeps and gives at the limits: large and few numbers, narrow dtypes, odd shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed import Group, Shard, group_of
from restoke.nn import ParallelCrossEntropyLoss, describe
from restoke.nn.functional import parallel_cross_entropy
from tests.nn.counted import Largest, collectives, peak
from tests.nn.joined import run
from tests.nn.simulated import simulate
from tests.nn.test_cross_entropy import Draw, both, cases, grid, worst

F64 = torch.float64


@pytest.mark.parametrize(("classes", "n"), [(10, 4), (5, 8), (101, 3)])
def test_logits_a_thousand_times_larger_lose_nothing(classes: int, n: int) -> None:
    loss, grad = worst(simulate(n, grid, classes, 3000.0))
    assert loss <= 1e-12
    assert grad <= 1e-12


def part_of(group: Group, logits: Tensor, dim: int = 1) -> tuple[Tensor, Shard]:
    shard = Shard(group, dim, logits.shape[dim])
    return shard.of(logits).clone().requires_grad_(), shard


def sent(rows: list[int] | None) -> list[list[str]]:
    part, shard = part_of(group_of(), torch.randn(4, 9))
    target = torch.tensor([0, 8, -100, 4])
    with collectives() as forward:
        loss = parallel_cross_entropy(describe(part, shard), target, torch.ones(9), label_smoothing=0.1, rows=rows)
    with collectives() as backward:
        loss.backward()
    return [forward, backward]


def test_two_collectives_forward_and_none_backward() -> None:
    assert run(2, sent, None) == [[["all_reduce MAX", "all_reduce SUM"], []]] * 2
    assert run(2, sent, [3, 1]) == [[["all_reduce MAX", "all_reduce SUM"], ["all_gather"]]] * 2


def sizes(group: Group, dtype: torch.dtype, soft: bool) -> list[float]:
    """The largest tensor relative to the part of the logits; the peak beside the logits, in buffers of float32."""
    rows, classes = 256, 20_000
    part, shard = part_of(group, torch.randn(rows, classes, dtype=dtype))
    target = describe(torch.rand(part.shape), shard) if soft else torch.arange(rows)
    with peak() as bytes_, Largest() as largest:
        loss = parallel_cross_entropy(describe(part, shard), target, label_smoothing=0.1)
        loss.backward()
        del loss
    return [largest.elements / part.numel(), (bytes_[0] - part.nbytes - soft * target.nbytes) / (4 * part.numel())]


@pytest.mark.parametrize("soft", [False, True])
def test_no_buffer_is_larger_than_a_part_and_one_is_made_beside_the_logits(soft: bool) -> None:
    for largest, beside in simulate(4, sizes, torch.float32, soft):
        assert largest == 1
        assert 1 <= beside <= 1.3
    for largest, beside in simulate(4, sizes, torch.bfloat16, soft):
        assert largest == 1
        assert 0.5 <= beside <= 0.85


def ignored(group: Group) -> list[Any]:
    found = []
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            part, shard = part_of(group, torch.zeros(3, 7))
            loss = parallel_cross_entropy(describe(part, shard), torch.full((3,), 2), None, None, 2, None, reduction, smoothing)
            loss.sum().backward()
            found.append((loss.tolist(), part.grad.abs().max().item()))
    return found


def test_where_all_rows_are_ignored_the_mean_is_nan_as_for_torch_and_no_gradient_is() -> None:
    for found in simulate(3, ignored):
        assert [math.isnan(loss) for loss, _ in found[:2]] == [True, True]
        assert [loss for loss, _ in found[2:]] == [0.0, 0.0, [0.0] * 3, [0.0] * 3]
        assert all(grad == 0 for _, grad in found)


def narrow(group: Group, dtype: torch.dtype) -> list[Any]:
    """TorchShard's loss of 200000 equal half-precision logits is infinite; loss_parallel's of bfloat16 is off by percents."""
    equal, shard = part_of(group, torch.zeros(1, 200_000, dtype=dtype))
    first = parallel_cross_entropy(describe(equal, shard), torch.tensor([7]))
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)
    part, shard = part_of(group, logits)
    loss = parallel_cross_entropy(describe(part, shard), torch.arange(6), label_smoothing=0.1)
    loss.backward()
    whole = logits.double().requires_grad_()
    expected = F.cross_entropy(whole, torch.arange(6), label_smoothing=0.1)
    expected.backward()
    gap = (part.grad.double() - shard.of(whole.grad)).abs().max().item()
    return [first.item(), loss.dtype, abs(loss.item() - expected.item()), part.grad.dtype, gap]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_logits_are_computed_in_float32(dtype: torch.dtype) -> None:
    for first, made, error, grad, gap in simulate(4, narrow, dtype):
        assert first == pytest.approx(math.log(200_000), rel=1e-6)
        assert (made, grad) == (torch.float32, dtype)
        assert error < 1e-6
        assert gap < torch.finfo(dtype).eps / 4


def under_autocast(group: Group) -> float:
    draw = Draw(3)
    weight, logits, target = draw.share(40).float(), draw.normal(6, 40).float(), torch.arange(6)
    part, shard = part_of(group, logits)
    with torch.autocast("cpu", torch.bfloat16):
        loss = parallel_cross_entropy(describe(part, shard), target, weight, label_smoothing=0.5)
        loss.backward()
    whole = logits.clone().requires_grad_()
    expected = F.cross_entropy(whole, target, weight, label_smoothing=0.5)
    expected.backward()
    return max((loss - expected).abs().item(), (part.grad - shard.of(whole.grad)).abs().max().item())


def test_autocast_does_not_narrow_the_loss() -> None:
    assert max(simulate(2, under_autocast)) < 1e-6


def more_dimensions(group: Group) -> list[tuple[float, float]]:
    draw, found = Draw(4), []
    weight = draw.share(11) + 0.5
    for case in cases(weight):
        for shape in ((4,), (3, 2), (2, 1, 3)):
            logits = draw.normal(shape[0], 11, *shape[1:])
            shard = Shard(group, 1, 11)
            found.append(both(draw, logits, case.targets(draw, shape, 11), shard, case.how))
            if not case.ignored:
                found.append(both(draw, logits, draw.share(*logits.shape), shard, case.how))
        one = draw.normal(11)
        how = {**case.how, "ignore_index": -100}
        found.append(both(draw, one, torch.tensor(7), Shard(group, 0, 11), how))
        found.append(both(draw, one, draw.share(11), Shard(group, 0, 11), how))
    return found


def test_inputs_of_one_and_of_more_dimensions() -> None:
    loss, grad = worst(simulate(3, more_dimensions))
    assert loss <= 1e-12
    assert grad <= 1e-13


def odd(group: Group) -> list[tuple[float, float]]:
    """Strided, masked and int32, a view that is read twice."""
    draw, shard, found = Draw(5), Shard(group, 1, 10), []
    target = torch.tensor([1, 9, 0], dtype=torch.int32)
    masked = draw.normal(3, 10)
    masked[:, 4:7] = -math.inf
    for logits in (draw.normal(10, 3).t(), draw.normal(3, 20)[:, ::2], masked):
        whole = logits.clone().requires_grad_()
        part = logits.detach().requires_grad_()
        own = shard.of(part)
        expected = F.cross_entropy(whole, target.long())
        loss = parallel_cross_entropy(describe(own, shard), target)
        expected.backward(retain_graph=True)
        expected.backward()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(((loss - expected).abs().item(), (shard.of(part.grad) - shard.of(whole.grad)).abs().max().item()))
    return found


def test_strided_and_masked_logits_and_a_graph_that_is_gone_through_twice() -> None:
    loss, grad = worst(simulate(4, odd))
    assert loss <= 1e-12
    assert grad <= 1e-14


def test_gradcheck_on_a_group_of_one() -> None:
    draw, shard = Draw(6), Shard(Group((0,), 0), 1, 7)
    part = draw.normal(3, 7).requires_grad_()
    target, weight = torch.tensor([6, -100, 2]), draw.share(7)

    def loss(part: Tensor) -> Tensor:
        return parallel_cross_entropy(part, target, weight, reduction="none", label_smoothing=0.2, shard=shard)

    assert torch.autograd.gradcheck(loss, part)


def own_rows(group: Group, weight: bool, smoothing: float, reduction: str) -> tuple[float, float]:
    """Each rank's own loss, and the gradient that data parallelism would average."""
    draw, classes, rows = Draw(7), 9, [3, 1, 4]
    how = {"weight": draw.share(classes) if weight else None, "label_smoothing": smoothing, "reduction": reduction}
    logits, target = draw.normal(sum(rows), classes), draw.classes((sum(rows),), classes)
    target[2] = -100
    part, shard = part_of(group, logits)
    loss = parallel_cross_entropy(describe(part, shard), target, rows=rows, **how)
    loss.sum().backward()
    whole = logits.clone().requires_grad_()
    losses = [F.cross_entropy(x, y, **how) for x, y in zip(whole.split(rows), target.split(rows), strict=True)]
    (sum(each.sum() for each in losses) / len(rows)).backward()
    own = losses[group.rank]
    assert loss.shape == own.shape
    return (loss - own).abs().max().item(), (part.grad - shard.of(whole.grad)).abs().max().item()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_with_rows_each_rank_has_the_loss_of_its_own(reduction: str) -> None:
    for weight, smoothing in ((False, 0.0), (True, 0.1)):
        for loss, grad in simulate(3, own_rows, weight, smoothing, reduction):
            assert loss <= 1e-12
            assert grad <= 1e-14


def as_modules(group: Group) -> bool:
    weight = torch.arange(1.0, 8.0)
    loss = ParallelCrossEntropyLoss(weight, ignore_index=3, reduction="sum", label_smoothing=0.1)
    part, shard = part_of(group, torch.randn(4, 7))
    target = torch.tensor([0, 3, 6, 2])
    found = loss(describe(part, shard), target)
    expected = parallel_cross_entropy(
        describe(part, shard), target, weight, ignore_index=3, reduction="sum", label_smoothing=0.1
    )
    return bool(found == expected) and list(loss.state_dict()) == ["weight"]


def test_the_module_passes_its_options_on() -> None:
    assert simulate(2, as_modules) == [True, True]
    said = "ParallelCrossEntropyLoss(ignore_index=-100, reduction='sum', label_smoothing=0.0)"
    with pytest.warns(UserWarning, match="size_average and reduce"):
        assert repr(ParallelCrossEntropyLoss(size_average=False)) == said


def weight_in_parts(group: Group | None) -> float:
    weight, (part, shard) = torch.rand(7), part_of(group or group_of(), torch.randn(4, 7))
    given = describe(shard.along(0).of(weight), shard.along(0))
    target = torch.tensor([0, 3, 6, 2])
    both_ = [parallel_cross_entropy(describe(part, shard), target, w, label_smoothing=0.3) for w in (weight, given)]
    return (both_[0] - both_[1]).abs().item()


def test_class_weights_may_be_parts_too() -> None:
    assert run(2, weight_in_parts, None) == [0.0, 0.0]
