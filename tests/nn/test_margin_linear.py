"""The margin head equals plain torch on full matrices, for any sizes over any group; nothing as large as the weight is made."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from restoke.distributed import Shard, group_of
from restoke.errors import SpecError
from restoke.nn import describe, shard_of, shards_of
from restoke.nn.margin_linear import ParallelMarginLinear
from restoke.nn.margins import ArcFace
from tests.nn.joined import run
from tests.nn.margin_reference import F64, PAIRS, logits

ROWS, FEATURES = 9, 6


def head_of(weight: Tensor, margin: Any = None, scale: float = 64.0, **made: Any) -> ParallelMarginLinear:
    head = ParallelMarginLinear(weight.shape[1], weight.shape[0], margin, scale, dtype=weight.dtype, **made)
    with torch.no_grad():
        head.weight.copy_(head.shard.of(weight))
    return head


def problem(classes: int, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, class vectors, targets (one ignored), and what each logit weighs in the loss."""
    generator = torch.Generator().manual_seed(classes)
    x = torch.randn(ROWS, FEATURES, generator=generator, dtype=F64)
    weight = torch.randn(classes, FEATURES, generator=generator, dtype=F64)
    target = torch.randint(classes, (ROWS,), generator=generator)
    target[4] = -100
    weigh = torch.randn(ROWS, classes, generator=generator, dtype=F64)
    return x.to(dtype), weight.to(dtype), target, weigh.to(dtype)


def errors(classes: int, case: int, size: int | None, with_target: bool) -> list[float]:
    margin, of_angle = PAIRS[case]
    x, weight, target, weigh = problem(classes)
    kept = target.clone()
    head = head_of(weight, margin, 3.0, group=group_of(size))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    whole = weight.clone().requires_grad_()
    out = head(ours, target if with_target else None)
    wanted = logits(theirs, whole, target if with_target else None, of_angle, 3.0)
    cut = head.shard.along(-1)
    (out * cut.of(weigh)).sum().backward()
    (wanted * weigh).sum().backward()
    assert torch.equal(target, kept)
    assert head.weight.grad is not None
    assert theirs.grad is not None
    assert whole.grad is not None
    pairs = [(out, cut.of(wanted)), (ours.grad, theirs.grad), (head.weight.grad, head.shard.of(whole.grad))]
    return [float((a - b).detach().abs().max()) if a.numel() else 0.0 for a, b in pairs]


@pytest.mark.parametrize("case", range(len(PAIRS)), ids=[str(margin) for margin, _ in PAIRS])
@pytest.mark.parametrize(("n", "classes"), [(1, 10), (2, 11), (3, 10)])
def test_it_equals_the_whole_matrix(n: int, classes: int, case: int) -> None:
    for found in run(n, errors, classes, case, None, True):
        assert max(found) <= 1e-12


@pytest.mark.parametrize(("n", "classes", "size"), [(2, 7, None), (4, 10, 2), (4, 3, None), (3, 2, None)])
def test_it_equals_the_whole_matrix_without_targets_on_a_mesh_and_with_empty_shards(n: int, classes: int, size: int) -> None:
    for with_target in (False, True):
        for found in run(n, errors, classes, 0, size, with_target):
            assert max(found) <= 1e-12


def described() -> list[Any]:
    x, weight, target, _ = problem(7)
    head = head_of(weight)
    out = head(x, target)
    shard = shard_of(out)
    assert shard is not None
    again = copy.deepcopy(head)
    assert shards_of(again)["weight"].lengths == [4, 3]
    return [shard.dim, shard.size, tuple(out.shape), list(shards_of(head)), repr(head)]


def test_the_output_is_a_described_part_and_the_weight_a_registered_shard() -> None:
    first, second = run(2, described)
    assert first[:4] == [-1, 7, (9, 4), ["weight"]]
    assert second[:4] == [-1, 7, (9, 3), ["weight"]]
    assert "num_classes=7, margin=ArcFace(m=0.5, easy_margin=False), scale=64, ranks=2" in first[4]


def starting() -> tuple[int, list[list[float]]]:
    torch.manual_seed(5 + torch.distributed.get_rank())
    head = ParallelMarginLinear(4, 9)
    return head.shard.start, head.weight.tolist()


def test_what_it_begins_with_does_not_depend_on_the_group() -> None:
    wholes = [[row for _, rows in sorted(run(n, starting)) for row in rows] for n in (1, 2)]
    assert wholes[0] == wholes[1]
    spread = torch.tensor(wholes[0]).std()
    assert 0.005 < spread < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("margin", [margin for margin, _ in PAIRS], ids=str)
def test_gradients_are_finite_at_angles_of_zero_and_pi_in_any_dtype(margin: Any, dtype: torch.dtype) -> None:
    x, weight, target, weigh = problem(10, dtype)
    target[0], target[2] = 0, 9
    weight[0], weight[9] = -4 * x[0], x[2] / 4  # at angles of pi and 0
    head = head_of(weight, margin, group=group_of(1))
    x.requires_grad_()
    out = head(x, target)
    (out * weigh).sum().backward()
    assert head.weight.grad is not None
    assert x.grad is not None
    for each in (out, head.weight.grad, x.grad):
        assert each.isfinite().all()


def test_no_gradient_is_cut_off_at_a_cosine_of_one() -> None:
    """Where a clamp would stop it: the class vector is drawn to neither side, other samples' gradients pass."""
    weight = torch.eye(3, dtype=F64)
    head = head_of(weight, ArcFace(), 10.0, group=group_of(1))
    x = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0]], dtype=F64, requires_grad=True)
    torch.nn.functional.cross_entropy(head(x, torch.tensor([0, 0])), torch.tensor([0, 0])).backward()
    assert x.grad is not None
    assert (x.grad.norm(dim=1) > 0).tolist() == [True, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_arithmetic_is_in_float32_for_narrow_weights_and_under_autocast(dtype: torch.dtype) -> None:
    x, weight, target, weigh = problem(10, dtype)
    wide = head_of(weight.float(), group=group_of(1))
    narrow = head_of(weight, group=group_of(1))
    wanted = wide(x.float(), target)
    wanted.backward(weigh.float())
    found = narrow(x, target)
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)
    found.backward(weigh.float())
    assert narrow.weight.grad is not None
    assert wide.weight.grad is not None
    assert torch.equal(narrow.weight.grad, wide.weight.grad.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(wide(x.float(), target), wanted)


def test_narrow_weights_are_widened_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, target, weigh = problem(10, torch.bfloat16)
    at_once, by_pieces = (head_of(weight, group=group_of(1)) for _ in range(2))
    wanted = at_once(x, target)
    wanted.backward(weigh.float())
    monkeypatch.setattr("restoke.nn.functional.margin_linear.PIECE", 3 * FEATURES)
    found = by_pieces(x, target)
    found.backward(weigh.float())
    assert by_pieces.weight.grad is not None
    assert torch.allclose(found, wanted, rtol=1e-6)
    assert torch.equal(by_pieces.weight.grad, at_once.weight.grad)  # type: ignore[arg-type]


class Made(TorchDispatchMode):
    """The storages that operations made, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                self.kept.append(storage)  # so that no address is used twice
                self.sizes.setdefault(storage.data_ptr(), storage.nbytes() // each.element_size())
        return out


def test_nothing_as_large_as_the_weight_is_made_but_its_gradient() -> None:
    rows, classes, features = 3, 50, 40
    weight, x = torch.randn(classes, features), torch.randn(rows, features, requires_grad=True)
    head = head_of(weight, group=group_of(1))
    with Made() as forward:
        out = head(x, torch.tensor([1, 2, 3]))
    assert sum(size >= classes * features for size in forward.sizes.values()) == 1  # the weight itself, whose view is taken
    assert sum(size == rows * classes for size in forward.sizes.values()) == 1
    grad = torch.randn_like(out)
    with Made() as backward:
        out.backward(grad)
    assert head.weight.grad is not None
    large = [address for address, size in backward.sizes.items() if size >= classes * features]
    assert {head.weight.grad.data_ptr()} <= set(large) <= {head.weight.grad.data_ptr(), head.weight.data_ptr()}


def test_a_zero_class_vector_and_a_zero_feature_have_cosines_of_zero() -> None:
    weight, x = torch.randn(4, 3), torch.randn(2, 3)
    weight[1], x[0] = 0, 0
    head = head_of(weight, group=group_of(1))
    x.requires_grad_()
    out = head(x, torch.tensor([1, 1]))
    out.sum().backward()
    assert out[0, 0] == out[1, 0] * 0
    assert math.isclose(out[1, 1].item(), 64 * math.cos(math.pi / 2 + 0.5), rel_tol=1e-6)
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert head.weight.grad is not None
    assert head.weight.grad.isfinite().all()


def test_rows_may_be_few_or_none_and_the_last_batch_smaller() -> None:
    head = head_of(torch.randn(5, 3), group=group_of(1))
    for rows in (4, 1, 0):
        x = torch.randn(rows, 3, requires_grad=True)
        out = head(x, torch.zeros(rows, dtype=torch.int64))
        out.sum().backward()
        assert out.shape == (rows, 5)
        assert x.grad is not None


def test_frozen_class_vectors_and_frozen_features_are_left_alone() -> None:
    head = head_of(torch.randn(5, 3), group=group_of(1)).requires_grad_(False)
    x, target = torch.randn(4, 3, requires_grad=True), torch.arange(4)
    head(x, target).sum().backward()
    assert head.weight.grad is None
    assert x.grad is not None
    head.requires_grad_(True)(x.detach(), target).sum().backward()
    assert head.weight.grad is not None


def refusals() -> list[str]:
    head = head_of(torch.randn(5, 3))
    x, target, said = torch.randn(4, 3), torch.arange(4), []
    cases: list[tuple[Any, Any]] = [
        (torch.randn(4, 2), target),
        (torch.randn(4, 3, 1), target),
        (x, target[:2]),
        (x, target.int()),
        (x, target.to("meta")),
        (describe(torch.randn(4, head.shard.length), head.shard.along(-1)), target),
    ]
    for features, labels in cases:
        with pytest.raises(SpecError) as error:
            head(features, labels)
        said.append(str(error.value))
    return said


def test_what_does_not_fit_is_refused_alike_on_every_rank() -> None:
    first, second = run(2, refusals)
    assert first[:5] == second[:5]
    for words, message in zip(("2", "shape", "4 rows", "int32", "meta", "one rank's part"), first, strict=True):
        assert words in message


@pytest.mark.parametrize(("features", "classes"), [(0, 3), (3, 0), (3, 2.5)])
def test_sizes_below_one_are_refused(features: Any, classes: Any) -> None:
    with pytest.raises(SpecError, match="1 or more"):
        ParallelMarginLinear(features, classes, group=group_of(1))


def test_a_lone_group_gives_plain_logits() -> None:
    out = head_of(torch.randn(5, 3), group=group_of(1))(torch.randn(2, 3))
    assert type(out) is Tensor
    assert shard_of(out) is None
    assert Shard(group_of(1), 0, 5).length == 5
