"""What would be a silent local loss, or a wait that never ends, is a refusal on every rank of the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed import Group, Shard, gather, group_of
from restoke.errors import SpecError
from restoke.nn import ParallelCrossEntropyLoss, ParallelLinear, describe, plain
from restoke.nn.functional import parallel_cross_entropy
from tests.nn.joined import refused, run
from tests.nn.simulated import simulate

CLASSES = 10


def part_of(group: Group, rows: int = 3) -> Tensor:
    shard = Shard(group, 1, CLASSES)
    return describe(torch.zeros(rows, shard.length), shard)


def bad(group: Group) -> dict[str, Callable[[], Any]]:
    part, target = part_of(group), torch.tensor([0, 9, -100])
    loss = parallel_cross_entropy
    whole = torch.zeros(3, CLASSES)
    return {
        "beyond the classes": lambda: loss(part, torch.tensor([0, CLASSES, 1])),
        "below the classes": lambda: loss(part, torch.tensor([0, -1, 1])),
        "unlike targets": lambda: loss(part, torch.tensor([group.rank * 5] * 3)),
        "targets of too few rows": lambda: loss(part, target[:2]),
        "targets of float": lambda: loss(part, target.float()),
        "targets of bool": lambda: loss(part, target.bool()),
        "targets elsewhere": lambda: loss(part, target.to("meta")),
        "weight of the part": lambda: loss(part, target, torch.ones(5)),
        "weight of integers": lambda: loss(part, target, torch.ones(CLASSES, dtype=torch.int64)),
        "weight elsewhere": lambda: loss(part, target, torch.ones(CLASSES, device="meta")),
        "another reduction": lambda: loss(part, target, reduction="avg"),
        "smoothing above 1": lambda: loss(part, target, label_smoothing=1.5),
        "an index with probabilities": lambda: loss(part, whole, ignore_index=3),
        "probabilities with grad": lambda: loss(part, whole.clone().requires_grad_()),
        "probabilities of some classes": lambda: loss(part, torch.zeros(3, 5)),
        "a part of other classes": lambda: loss(part, describe(torch.zeros(3, 4), Shard(group, 1, 8))),
        "rows that do not add up": lambda: loss(part, target, rows=[1, 1]),
        "rows of one rank": lambda: loss(part, target, rows=[3]),
        "rows of a whole": lambda: loss(whole, target, rows=[2, 1]),
        "a part along the rows": lambda: loss(describe(torch.zeros(2, 3), Shard(group, 0, 4)), torch.tensor([0, 1])),
        "lost": lambda: loss(part.flip(1), target),
        "a shard of another length": lambda: loss(plain(part), target, shard=Shard(group, 1, 12)),
        "no class": lambda: loss(torch.zeros(3, 0), target),
        "no dimension": lambda: loss(torch.tensor(1.0), target),
        "a whole, beyond its classes": lambda: loss(whole, torch.tensor([0, CLASSES, 1])),
        "a whole, weight of fewer": lambda: loss(whole, target, torch.ones(5)),
        "options of a module": lambda: ParallelCrossEntropyLoss(reduction="avg"),
        "no classes in all": lambda: Shard(group, 1, 0),
    }


SAID = {
    "beyond the classes": "DataError: target='that of row 1': it is no class",
    "below the classes": "DataError: target='that of row 1'",
    "unlike targets": "the ranks hold unlike targets",
    "targets of too few rows": "Instead: shape (3,); of all ranks' rows",
    "targets of float": "nothing says that these are a part",
    "targets of bool": "neither numbers of classes nor probabilities",
    "targets elsewhere": "the logits are on cpu. Instead: target.to('cpu')",
    "weight of the part": "there are 10 classes",
    "weight of integers": "there are 10 classes",
    "weight elsewhere": "the logits are on cpu. Instead: weight.to('cpu')",
    "another reduction": "Instead: none, mean, sum",
    "smoothing above 1": "Instead: 0.0 to 1.0",
    "an index with probabilities": "there is no index to ignore",
    "probabilities with grad": "Instead: target.detach()",
    "probabilities of some classes": "nothing says that these are a part",
    "a part of other classes": "it is a part of 8",
    "rows that do not add up": "the input has 3 rows, and 2 ranks share its classes",
    "rows of one rank": "which add up to all of them",
    "rows of a whole": "the input has 3 rows, and is whole",
    "a part along the rows": "classes are dimension 1, as for torch",
    "lost": "it was made by flip",
    "a shard of another length": "of 12 along dimension 1",
    "no class": "there is no class",
    "no dimension": "it has no dimension of classes",
    "a whole, beyond its classes": "nothing says that these logits are a part, so there are 10 classes",
    "a whole, weight of fewer": "there are 10 classes",
    "options of a module": "Instead: none, mean, sum",
    "no classes in all": "has one element at least",
}


def all_refusals(group: Group | None) -> dict[str, str]:
    return {which: refused(call) for which, call in bad(group or group_of()).items()}


def test_every_rank_refuses_and_the_group_can_go_on() -> None:
    for found in run(2, all_refusals, None):
        assert list(found) == list(SAID)
        assert {which: said in found[which] for which, said in SAID.items()} == dict.fromkeys(SAID, True), found


def one_rank_alone(group: Group) -> list[str]:
    """The last rank's call is wrong in its own way; then all are right."""
    last = group.rank == group.size - 1
    wrong = [torch.tensor([0, 1]), torch.tensor([0.0, 1, 2]), torch.tensor([0, 1, 2], device="meta"), torch.tensor([0, 10, 2])]
    found = [refused(parallel_cross_entropy, part_of(group), each if last else torch.tensor([0, 1, 2])) for each in wrong]
    found.append(refused(parallel_cross_entropy, part_of(group), torch.tensor([0, 1, 2])))
    return found


def test_what_one_rank_refuses_the_others_hear_of_instead_of_waiting() -> None:
    *others, last = simulate(4, one_rank_alone)
    for found in others:
        assert all("another rank of the group refused its own" in said for said in found[:3])
        assert "the ranks hold unlike targets" in found[3]
        assert found[4] == ""
    assert "one target for each row" in last[0]
    assert "another rank" not in "".join(last)


class Bare(torch.autograd.Function):
    """As a kernel's wrapper has it: a plain tensor comes out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return plain(x) * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def stripped(group: Group) -> list[str]:
    layer = torch.nn.Linear(4, CLASSES)
    shard = Shard(group, -1, CLASSES)
    part = describe(F.linear(torch.randn(3, 4), shard.along(0).of(layer.weight)), shard)
    target = torch.tensor([0, 1, 2])
    bare = Bare.apply(part).relu() + 1
    assert type(bare) is Tensor
    found = [refused(parallel_cross_entropy, bare, target)]
    found.append(refused(lambda: parallel_cross_entropy(bare, target, shard=shard)))
    whole = gather(plain(part), -1, group, CLASSES)
    found.append(refused(lambda: parallel_cross_entropy(whole, target)))
    # a whole of as many classes as the part has columns, made behind what made the parts whole
    found.append(refused(lambda: parallel_cross_entropy(F.linear(whole, torch.ones(part.shape[1], CLASSES)), target)))
    return found


def test_a_plain_tensor_that_was_made_from_a_part_is_found_out_by_its_graph() -> None:
    for found in simulate(2, stripped):
        assert "it was made from this rank's part of 10 classes by something that gives plain tensors" in found[0]
        assert found[1:] == ["", "", ""]


def tagged(_: Group | None) -> list[Any]:
    """Any operation made TorchShard's loss take the part for a whole, in silence."""
    layer = ParallelLinear(4, CLASSES, dim=1)
    logits = layer(torch.ones(3, 4)) * 1.0
    target = torch.tensor([0, 9, 4])
    with pytest.raises(SpecError):
        F.cross_entropy(logits, target)
    first = parallel_cross_entropy(logits, target)
    whole = gather(plain(logits), -1, group_of(), CLASSES)
    return [
        abs(float(first - F.cross_entropy(whole, target))) < 1e-6,
        refused(parallel_cross_entropy, logits.roll(1, 1), target),
    ]


def test_what_keeps_a_part_keeps_its_loss_and_what_does_not_is_refused() -> None:
    for right, said in run(2, tagged, None):
        assert right
        assert "made by roll" in said


def test_a_plain_tensor_of_all_classes_gets_torch_s_own_loss() -> None:
    logits, target, weight = torch.randn(4, 5), torch.tensor([0, 4, -100, 2]), torch.rand(5)
    how: dict[str, Any] = {"reduction": "sum", "label_smoothing": 0.1}
    assert torch.equal(parallel_cross_entropy(logits, target, weight, **how), F.cross_entropy(logits, target, weight, **how))
    soft = logits.softmax(1)
    assert torch.equal(parallel_cross_entropy(logits, soft), F.cross_entropy(logits, soft))
    assert torch.equal(parallel_cross_entropy(logits[0], target[0].int()), F.cross_entropy(logits[0], target[0]))
    assert torch.equal(parallel_cross_entropy(logits, target, rows=[4]), F.cross_entropy(logits, target))
