"""Dropout among ranks: the same elements of the whole are dropped, however many ranks hold it and whatever their seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from restoke.distributed import Shard, group_of
from restoke.nn import ParallelDropout, ParallelLinear, describe, shard_of
from restoke.nn.functional import parallel_dropout
from tests.nn.joined import refused, run


def seeded() -> None:
    torch.manual_seed(20 + (dist.get_rank() if dist.is_initialized() else 0))


def masks(size: int | None) -> list[Any]:
    seeded()
    group, whole = group_of(size), torch.ones(6, 7)
    shard = Shard(group, -1, 7)
    alike = parallel_dropout(whole, 0.5, group=group)
    seeded()
    mine = shard.of(whole).clone()
    part = parallel_dropout(mine if group.size == 1 else describe(mine, shard), 0.5, group=group)
    assert group.size == 1 or shard_of(part).size == 7
    return [alike.tolist(), part.tolist()]


def test_the_mask_belongs_to_the_whole() -> None:
    alone = torch.tensor(run(1, masks, None)[0][0])
    assert set(alone.unique().tolist()) == {0.0, 2.0}
    for n in (2, 3):
        ranks = run(n, masks, None)
        assert all(torch.equal(torch.tensor(alike), alone) for alike, _ in ranks)
        assert torch.equal(torch.cat([torch.tensor(part) for _, part in ranks], -1), alone)


def test_two_groups_drop_their_own() -> None:
    ranks = run(4, masks, 2)
    assert ranks[0][0] == ranks[1][0] != ranks[2][0] == ranks[3][0]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_much_is_dropped_as_was_asked_at_every_place_alike(p: float) -> None:
    torch.manual_seed(0)
    kept = torch.stack([parallel_dropout(torch.ones(64, 64), p) for _ in range(100)]) > 0
    assert abs(float(kept.double().mean()) - (1 - p)) < 4 * (p * (1 - p) / kept.numel()) ** 0.5
    # each row, column, place and neighbouring pair is as free as the others: five standard deviations of the worst of all
    spread = (p * (1 - p)) ** 0.5
    for dims in ((0, 1), (0, 2), (1, 2)):
        means = kept.double().mean(dims)
        count = kept.numel() / means.numel()
        assert float((means - (1 - p)).abs().max()) < 5 * spread / count**0.5
    z = (kept.double() - (1 - p)) / spread
    for a, b in ((z[:, 1:], z[:, :-1]), (z[..., 1:], z[..., :-1]), (z[1:], z[:-1])):
        assert abs(float((a * b).mean())) < 5 / a.numel() ** 0.5


def test_two_calls_drop_independently() -> None:
    torch.manual_seed(0)
    first, second = (parallel_dropout(torch.ones(1 << 12), 0.5) for _ in range(2))
    assert 0.45 < float((first == second).double().mean()) < 0.55


def grads() -> Tensor:
    torch.manual_seed(1)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    out = parallel_dropout(x, 0.3)
    out.sum().backward()
    assert torch.equal(out != 0, x.grad != 0)
    return x.grad


def test_the_gradient_is_the_mask_over_what_is_kept() -> None:
    assert set(grads().unique().tolist()) == {0.0, 1 / 0.7}


def recomputed() -> list[Any]:
    seeded()
    layer, drop = ParallelLinear(4, 6, dim=1, dtype=torch.float64), ParallelDropout(0.5)

    def half(x: Tensor) -> Tensor:
        return drop(layer(drop(x)))

    found = []
    for forward in (half, lambda x: checkpoint(half, x, use_reentrant=False)):
        seeded()
        torch.rand(3)
        x = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
        forward(x).pow(2).sum().backward()
        found.append(x.grad.tolist())
    return found


def test_a_forward_that_is_computed_again_drops_the_same() -> None:
    for plain_grad, again in run(2, recomputed):
        assert plain_grad == again
        assert any(value for row in again for value in row)


def test_evaluation_drops_nothing_and_one_drops_all() -> None:
    x = torch.ones(3, 3)
    assert ParallelDropout(0.5).eval()(x) is x
    assert int(parallel_dropout(x, 1.0).sum()) == 0


def bad(which: str) -> str:
    part = ParallelLinear(2, 4, dim=1)(torch.ones(1, 2))
    cases = {
        "p": lambda: ParallelDropout(1.5),
        "functional p": lambda: parallel_dropout(part, -0.1),
        "lost": lambda: parallel_dropout(part.flip(-1), 0.5),
    }
    return refused(cases[which])


@pytest.mark.parametrize(("which", "words"), [("p", "p=1.5"), ("functional p", "p=-0.1"), ("lost", "made by flip")])
def test_what_it_cannot_take_is_refused(which: str, words: str) -> None:
    assert all(words in message for message in run(2, bad, which))
