"""What a part knows of itself: whatever it says after an operation is so of the whole, and what would be local is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke.distributed import Group, Shard
from restoke.errors import SpecError
from restoke.nn import describe, plain, shard_of
from restoke.nn.described import Part
from tests.nn.joined import refused

Op = Callable[[Tensor], Any]
ROWS, WIDTH = 3, 7


def ranks(n: int, dim: int = -1, size: int = WIDTH) -> list[Shard]:
    """The shards of all ranks; nothing here asks for a process group."""
    return [Shard(Group(tuple(range(n)), rank), dim, size) for rank in range(n)]


def whole(shape: tuple[int, ...] = (ROWS, WIDTH)) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1


def part_of(x: Tensor, shard: Shard) -> Tensor:
    return describe(shard.of(x).clone(), shard)


column = torch.rand(ROWS, 1, dtype=torch.float64)
KEPT: dict[str, Op] = {
    "+ number": lambda x: x + 1,
    "number -": lambda x: 2 - x,
    "* column": lambda x: x * column,
    "column /": lambda x: column / x,
    "part * part": lambda x: x * x.exp(),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: x.addcmul(x, x),
    "pow": lambda x: x**2,
    "number **": lambda x: 2.0**x,
    "neg": lambda x: -x,
    "gelu": F.gelu,
    "relu": F.relu,
    "module": nn.SiLU(),
    "clamp": lambda x: x.clamp(0.2, 0.5),
    "where": lambda x: torch.where(x > 0.5, x, -x),
    "masked": lambda x: x.masked_fill(x > 0.5, 0),
    "mask": lambda x: (x > 0.5).double(),
    "mask of two": lambda x: (x > 0.5) & (x < 0.8),
    "cast": lambda x: x.float().double(),
    "to bits and back": lambda x: (x * 10).long().double(),
    "in place": lambda x: x.clone().mul_(2).add_(1),
    "in place, by operator": lambda x: operator_in_place(x.clone()),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "contiguous": lambda x: x.contiguous(),
    "nothing to do": lambda x: x.resolve_conj().to(torch.float64),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze first": lambda x: x.unsqueeze(0).squeeze(0),
    "row": lambda x: x[0],
    "rows": lambda x: x[1:],
    "rows by a list": lambda x: x[[0, 2]],
    "rows by a mask": lambda x: x[torch.tensor([True, False, True])],
    "new dimension": lambda x: x[:, None],
    "expand": lambda x: x.unsqueeze(0).expand(2, -1, -1),
    "flatten": lambda x: x.unsqueeze(0).expand(2, -1, -1).flatten(0, 1),
    "fold": lambda x: x.view(1, ROWS, x.shape[-1]),
    "cat rows": lambda x: torch.cat([x, x * 2]),
    "stack": lambda x: torch.stack([x, x]),
    "deepcopy": lambda x: copy.deepcopy(x.detach()),
    "maximum": lambda x: torch.max(x, x * 2 - 0.5),
    "broadcast up": lambda x: x + torch.ones(2, 1, 1, dtype=torch.float64),
    "loss of each element": lambda x: F.mse_loss(x, x * 2, reduction="none"),
    "logits of each element": lambda x: F.binary_cross_entropy_with_logits(x, x, reduction="none"),
}


def operator_in_place(x: Tensor) -> Tensor:
    x *= 3
    x -= 1
    return x


@pytest.mark.parametrize("n", [2, 3, 7, 9])
@pytest.mark.parametrize("what", KEPT)
def test_it_stays_the_part_of_the_same_whole(what: str, n: int) -> None:
    x = whole()
    expected = KEPT[what](x)
    for shard in ranks(n):
        out = KEPT[what](part_of(x, shard))
        known = shard_of(out)
        assert known is not None
        assert (known.size, known.dim) == (WIDTH, -1)
        assert torch.equal(plain(out), known.of(expected))


LOST: dict[str, Op] = {
    "transpose": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "permuted": lambda x: x[:, torch.arange(x.shape[1]).flip(0)],
    "cat along": lambda x: torch.cat([x, x], -1),
    "cat with a whole": lambda x: torch.cat([x, torch.ones(1, x.shape[1], dtype=torch.float64)]),
    "stack along": lambda x: torch.stack([x, x], -1),
    "chunks": lambda x: x.chunk(2, -1)[0],
    "matmul": lambda x: torch.ones(2, ROWS, dtype=torch.float64) @ x,
    "inner": lambda x: x @ x.T,
    "sum along": lambda x: x.sum(-1),
    "sum over rows": lambda x: x.sum(0),
    "linear": lambda x: F.linear(x, torch.ones(4, x.shape[-1], dtype=torch.float64)),
    "unsqueeze last": lambda x: x.unsqueeze(-1),
    "reverse in place": lambda x: x.clone().copy_(x.flip(-1)),
    "outer": lambda x: x[0][:, None] + x[0],
    "gather": lambda x: x.gather(1, torch.zeros(ROWS, x.shape[-1], dtype=torch.int64)),
    "of a lost one": lambda x: x.flip(-1) * 2,
    "with a lost one": lambda x: x + x.flip(-1),
    "picked": lambda x: torch.ones(ROWS, x.shape[-1])[x > 0.5],
}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("what", LOST)
def test_after_anything_else_it_says_what_lost_it(what: str, n: int) -> None:
    """Square and narrow parts too, whose shape does not tell."""
    for width in (ROWS * n, n, 2 * n + 1):
        for shard in ranks(n, size=width):
            out = LOST[what](part_of(whole((ROWS, width)), shard))
            if n == 1:
                assert type(out) is Tensor
            elif out.numel():
                with pytest.raises(SpecError, match="it was made by"):
                    shard_of(out)


def test_two_cuts_of_unlike_dimensions_or_sizes_are_none_together() -> None:
    rows, columns, other = (part_of(whole((4, 4)), ranks(2, dim, 4)[0]) for dim in (0, 1, -1))
    square = describe(whole((2, 2)), ranks(2, 0, 4)[0]) + describe(whole((2, 2)), ranks(2, -1, 4)[0])
    assert shard_of(columns * other) is not None
    longer = describe(whole((2, 2)), ranks(2, -1, 4)[0]) * describe(whole((2, 2)), ranks(2, -1, 3)[0])
    for out in (square, longer):
        with pytest.raises(SpecError):
            shard_of(out)
    assert shard_of(rows).dim == 0


@pytest.mark.parametrize("op", [lambda x: x * 2, F.relu, lambda x: x + torch.ones(1, 3, dtype=torch.float64), lambda x: x.data])
def test_a_cut_of_the_batch_is_kept_element_by_element(op: Op) -> None:
    x = whole((5, 3))
    for shard in ranks(2, 0, 5):
        out = op(part_of(x, shard))
        assert torch.equal(plain(out), shard_of(out).of(op(x)))


@pytest.mark.parametrize("op", [lambda x: x.view(-1), lambda x: x[0], lambda x: x.unsqueeze(0), lambda x: x.flatten()])
def test_a_cut_of_the_batch_is_lost_with_its_place(op: Op) -> None:
    with pytest.raises(SpecError):
        shard_of(op(part_of(whole((5, 3)), ranks(2, 0, 5)[0])))


def test_in_place_the_same_tensor_tells_what_happened_to_it() -> None:
    x = part_of(whole(), ranks(2)[0])
    assert x.mul_(2) is x
    assert shard_of(x) is not None
    x.copy_(torch.zeros_like(plain(x)))
    assert "made by copy_" in refused(shard_of, x)


def test_a_leaf_stays_a_leaf_and_takes_its_gradient() -> None:
    x = part_of(whole(), ranks(2)[0]).requires_grad_()
    (x * 3).sum().backward()
    assert x.is_leaf
    assert shard_of(x.grad) is not None
    assert float(x.grad.unique()) == 3


def test_gradients_pass_through_description_and_plainness() -> None:
    x = whole().requires_grad_()
    shard = ranks(2)[0]
    plain(describe(shard.of(x), shard) * 2).sum().backward()
    assert x.grad.sum() == 2 * ROWS * shard.length


@pytest.mark.parametrize("op", [str, repr, len, lambda x: x.tolist(), lambda x: x.shape, lambda x: x[0, 0].item(), hash])
def test_looking_at_it_is_looking_at_a_tensor(op: Callable[[Tensor], Any]) -> None:
    x = describe(whole((2, 2)), ranks(2, size=4)[0])
    op(x)
    assert shard_of(x) is not None


def test_a_length_that_is_not_this_rank_s_is_refused() -> None:
    assert "holds 4 of 7" in refused(describe, whole(), ranks(2)[0])


def test_a_part_in_a_group_of_one_is_a_whole() -> None:
    assert not isinstance(describe(whole(), ranks(1)[0]), Part)


def test_a_part_is_not_saved_as_if_it_were_a_whole() -> None:
    x = part_of(whole(), ranks(2)[0])
    assert "does not know its ranks" in refused(pickle.dumps, x)
    assert pickle.loads(pickle.dumps(plain(x))).shape == x.shape


def test_a_copy_of_a_leaf_is_a_leaf() -> None:
    x = copy.deepcopy(part_of(whole(), ranks(2)[0]).requires_grad_())
    assert x.is_leaf
    assert x.requires_grad
    assert shard_of(x) is not None
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(x * 2)
