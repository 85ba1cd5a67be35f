"""Top-k and accuracy over parts equal torch's on whole logits, for any sizes over any group, and no logits are gathered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from restoke.distributed import Shard, group_of
from restoke.errors import SpecError
from restoke.nn import describe, plain
from restoke.nn.accuracy import parallel_accuracy, parallel_topk
from tests.nn.joined import run


def part_of(whole: Tensor) -> Tensor:
    shard = Shard(group_of(), -1, whole.shape[-1])
    return shard.of(whole).clone() if shard.group.size == 1 else describe(shard.of(whole).clone(), shard)


def ordered(whole: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of equal scores the lower class first."""
    values, indices = whole.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


def topk_of(whole: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = parallel_topk(part_of(whole).requires_grad_(), k)
    assert not values.requires_grad
    return values, indices


@pytest.mark.parametrize(("n", "classes"), [(1, 9), (2, 9), (3, 10), (3, 2), (4, 3)])
def test_topk_is_torchs_on_the_whole(n: int, classes: int) -> None:
    whole = torch.randn(2, 5, classes, generator=torch.Generator().manual_seed(classes))
    for k in (1, 2, classes):
        wanted = whole.topk(k)
        for values, indices in run(n, topk_of, whole, k):
            assert torch.equal(values, wanted.values)
            assert torch.equal(indices, wanted.indices)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_of_equal_scores_the_lower_class_comes_first(n: int) -> None:
    whole = torch.randint(3, (40, 11), generator=torch.Generator().manual_seed(0)).float()
    whole[:3] = 0
    whole[5, ::2] = -torch.inf
    for k in (1, 4, 11):
        wanted = ordered(whole, k)
        for found in run(n, topk_of, whole, k):
            assert torch.equal(found[0], wanted[0])
            assert torch.equal(found[1], wanted[1])


def lost() -> list[Any]:
    whole = torch.arange(12.0).view(2, 6)
    part = part_of(whole).cumsum(0)
    with pytest.raises(SpecError, match="cumsum"):
        parallel_topk(part, 1)
    return [each.tolist() for each in parallel_topk(part, 1, shard=Shard(group_of(), 0, 6))]


def test_a_part_that_lost_its_description_is_refused_unless_it_is_said_what_it_is() -> None:
    for found in run(2, lost):
        assert found == [[[5.0], [16.0]], [[5], [5]]]


def accuracies(whole: Tensor, target: Tensor, ks: tuple[int, ...], rows: list[int] | None) -> list[float]:
    kept = target.clone()
    found = parallel_accuracy(part_of(whole), target, ks, rows)
    assert torch.equal(target, kept)
    return [each.item() for each in found]


@pytest.mark.parametrize(("n", "classes"), [(1, 12), (2, 7), (3, 10), (4, 3)])
@pytest.mark.parametrize("ties", [False, True])
def test_accuracy_is_the_share_of_rows_whose_target_is_among_the_highest(n: int, classes: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    whole = torch.randn(50, classes, generator=generator)
    whole = whole.round() if ties else whole
    target = torch.randint(classes, (50,), generator=generator)
    target[::7] = -100
    counted = target != -100
    ks = (1, 2, 3, classes)
    hits = [(ordered(whole, k)[1] == target.unsqueeze(1)).any(1) for k in ks]
    wanted = [float(hit[counted].float().mean()) for hit in hits]
    for found in run(n, accuracies, whole, target, ks, None):
        assert found == pytest.approx(wanted, abs=1e-6)
    assert wanted[-1] == 1
    rows = [20, 0, 25, 5][: n - 1]
    rows.append(50 - sum(rows))
    for rank, found in enumerate(run(n, accuracies, whole, target, ks, rows)):
        own = torch.arange(50).split(rows)[rank]
        share = [float(hit[own][counted[own]].float().mean()) for hit in hits]
        assert found == pytest.approx(share, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("n", [1, 2])
def test_scores_that_are_no_numbers_are_never_right(n: int) -> None:
    whole = torch.zeros(3, 4)
    whole[0] = torch.nan
    whole[1, 2] = torch.nan
    whole[2, 0] = 1
    for found in run(n, accuracies, whole, torch.zeros(3, dtype=torch.int64), (1,), None):
        assert found == pytest.approx([1 / 3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_narrow_and_wide_scores_are_compared_as_they_are(dtype: torch.dtype) -> None:
    whole = torch.randn(30, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    target = torch.arange(30) % 6
    wanted = [float((ordered(whole, 1)[1].squeeze(1) == target).float().mean())]
    for found in run(2, accuracies, whole, target, (1,), None):
        assert found == pytest.approx(wanted)


def sent() -> list[int]:
    """The elements of each tensor that goes to other ranks."""
    counted: list[int] = []
    gather, reduce = dist.all_gather, dist.all_reduce
    dist.all_gather = lambda parts, tensor, group: [counted.append(tensor.numel()), gather(parts, tensor, group=group)]
    dist.all_reduce = lambda tensor, *how, group: [counted.append(tensor.numel()), reduce(tensor, *how, group=group)]
    try:
        part = part_of(torch.randn(8, 1000))
        parallel_topk(part, 3)
        parallel_accuracy(part, torch.zeros(8, dtype=torch.int64), (1, 5))
    finally:
        dist.all_gather, dist.all_reduce = gather, reduce
    return counted


def test_k_numbers_a_row_travel_for_topk_and_two_for_accuracy() -> None:
    assert run(2, sent) == [[24, 24, 8, 8]] * 2


def refusals() -> list[str]:
    part, target, said = part_of(torch.randn(3, 5)), torch.arange(3), []
    cases: list[Any] = [
        lambda: parallel_topk(part, 6),
        lambda: parallel_topk(part, 0),
        lambda: parallel_topk(describe(plain(part).t(), Shard(group_of(), 0, 5)), 1),
        lambda: parallel_accuracy(part, torch.tensor([0, 5, 1])),
        lambda: parallel_accuracy(part, torch.tensor([0, -1, 1])),
        lambda: parallel_accuracy(part, target[:2]),
        lambda: parallel_accuracy(part, target.float()),
    ]
    for case in cases:
        with pytest.raises(SpecError) as error:
            case()
        said.append(str(error.value))
    return said


def test_what_does_not_fit_is_refused_on_every_rank() -> None:
    for said in run(2, refusals):
        words = ("there are 5 classes", "1 to 5", "last dimension", "target=5", "target=-1", "(2,)", "float32")
        for word, message in zip(words, said, strict=True):
            assert word in message
