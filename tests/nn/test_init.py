"""What a sharded tensor begins with: the same for every number of ranks, whatever their seeds, distributed as torch has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from restoke.distributed import Shard, group_of
from restoke.nn import ParallelEmbedding, ParallelLinear
from restoke.nn import init as restoke_init
from restoke.nn.init import alike_, sharded_
from tests.nn.joined import run


def halved_(weight: Tensor) -> None:
    weight.data.normal_(std=2).mul_(0.5).clamp_(min=-0.5)


def first_row_(weight: Tensor) -> None:
    nn.init.normal_(weight)
    weight[0] = 7


METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "uniform": (nn.init.uniform_, {"a": 1.0, "b": 2.0}),
    "normal": (nn.init.normal_, {"std": 0.1}),
    "truncated": (nn.init.trunc_normal_, {"std": 2.0}),
    "partial": (partial(nn.init.trunc_normal_, std=0.5), {"a": -0.6}),
    "constant": (nn.init.constant_, {"val": 3.0}),
    "xavier uniform": (nn.init.xavier_uniform_, {}),
    "xavier normal": (nn.init.xavier_normal_, {}),
    "kaiming by inputs": (nn.init.kaiming_uniform_, {"a": 5**0.5}),
    "kaiming by outputs": (nn.init.kaiming_normal_, {"mode": "fan_out"}),
    "own, element by element": (halved_, {}),
    "own, of the whole": (first_row_, {}),
    "orthogonal": (nn.init.orthogonal_, {}),
}
WHOLE = {"own, of the whole", "orthogonal"}


def filled(which: str, dim: int, size: int | None, block: int, unlike: bool) -> list[Any]:
    """The whole, put together from the parts of a group; three rows of two blocks each are cut by no number of ranks alike."""
    usual, restoke_init.BLOCK = restoke_init.BLOCK, block
    try:
        return filled_by_blocks(which, dim, size, unlike)
    finally:
        restoke_init.BLOCK = usual


def filled_by_blocks(which: str, dim: int, size: int | None, unlike: bool) -> list[Any]:
    torch.manual_seed(11 + (dist.get_rank() if unlike and dist.is_initialized() else 0))
    group = group_of(size)
    method, named = METHODS[which]
    shard = Shard(group, dim, 7 if dim == 0 else 5)
    shape = [7, 5]
    shape[dim] = shard.length
    part = sharded_(method, torch.full(shape, float("nan")), shard, **named)
    whole = alike_(method, torch.full((7, 5), float("nan")), group, **named)
    return [part.tolist(), whole.tolist(), float(torch.rand(()))]


def together(ranks: list[Any], dim: int) -> Tensor:
    return torch.cat([torch.tensor(part) for part, _, _ in ranks if torch.tensor(part).numel()], dim)


@pytest.mark.parametrize("which", METHODS)
def test_neither_the_number_of_ranks_nor_the_cut_nor_their_seeds_change_it(which: str) -> None:
    alone = run(1, filled, which, 0, None, 10, False)
    expected, alike, _ = torch.tensor(alone[0][0]), alone[0][1], alone[0][2]
    assert expected.isfinite().all()
    for n, dim, unlike in ((1, 1, False), (2, 0, True), (3, 1, True)):
        ranks = run(n, filled, which, dim, None, 10, unlike)
        assert torch.equal(together(ranks, dim), expected)
        assert all(rank[1] == alike for rank in ranks)


def test_four_ranks_in_two_groups_begin_alike() -> None:
    alone = run(1, filled, "xavier normal", 0, None, 10, False)
    ranks = run(4, filled, "xavier normal", 0, 2, 10, True)
    assert ranks[:2][0][0] == ranks[2:][0][0]
    assert torch.equal(together(ranks[:2], 0), torch.tensor(alone[0][0]))
    orthogonal = run(4, filled, "orthogonal", 1, 2, 10, True)
    assert torch.equal(together(orthogonal[2:], 1), torch.tensor(run(1, filled, "orthogonal", 1, None, 10, False)[0][0]))


def test_torch_s_generator_goes_on_as_far_whatever_the_method() -> None:
    drawn = {run(1, filled, which, 0, None, 10, False)[0][2] for which in METHODS}
    assert len(drawn) == 1


@pytest.mark.parametrize("which", [name for name in METHODS if name not in WHOLE and "own" not in name])
def test_it_is_distributed_as_torch_has_it(which: str) -> None:
    method, named = METHODS[which]
    torch.manual_seed(2)
    theirs, ours = torch.empty(600, 700), torch.empty(600, 700)
    method(theirs, **named)
    sharded_(method, ours, Shard(group_of(1), 0, 600), **named)
    for of in (Tensor.mean, Tensor.std, Tensor.amin, Tensor.amax):
        assert torch.allclose(of(ours), of(theirs), rtol=0.02, atol=0.005) or of in (Tensor.amin, Tensor.amax)
    quantiles = torch.linspace(0, 1, 21)[1:-1]
    assert torch.allclose(
        ours.view(-1)[::7].quantile(quantiles), theirs.view(-1)[::7].quantile(quantiles), atol=0.03, rtol=0.03
    )
    rows = ours[:, :50].double()
    if ours.std() > 0:
        assert torch.corrcoef(rows.T).fill_diagonal_(0).abs().max() < 0.25


def layers(dim: int | None) -> list[Any]:
    torch.manual_seed(4 + (dist.get_rank() if dist.is_initialized() else 0))
    linear, embedding = ParallelLinear(300, 200, dim=dim), ParallelEmbedding(200, 30, 3, dim=dim)
    return [linear.weight.tolist(), linear.bias.tolist(), embedding.weight.tolist()]


@pytest.mark.parametrize("dim", [0, 1])
def test_layers_begin_alike_for_every_number_of_ranks(dim: int) -> None:
    weight, bias, table = map(torch.tensor, run(1, layers, dim)[0])
    ranks = run(2, layers, dim)
    assert torch.equal(torch.cat([torch.tensor(each[0]) for each in ranks], 1 - dim), weight)
    assert torch.equal(torch.cat([torch.tensor(each[2]) for each in ranks], dim), table)
    if dim == 0:
        assert ranks[0][1] == ranks[1][1] == bias.tolist()
    else:
        assert torch.equal(torch.cat([torch.tensor(each[1]) for each in ranks]), bias)
    theirs = nn.Linear(300, 200)
    assert weight.abs().max() <= 300**-0.5
    assert weight.std() == pytest.approx(float(theirs.weight.detach().std()), rel=0.02)
    assert bias.std() == pytest.approx((3 * 300) ** -0.5, rel=0.15)
    assert table.std() == pytest.approx((199 / 200) ** 0.5, rel=0.05)


def test_a_generator_of_one_s_own_is_obeyed_and_torch_s_left_alone() -> None:
    torch.manual_seed(0)
    first, second, third = (torch.empty(4, 3) for _ in range(3))
    for seed, tensor in ((1, first), (1, second), (2, third)):
        sharded_(nn.init.normal_, tensor, Shard(group_of(1), 0, 4), generator=torch.Generator().manual_seed(seed))
    after = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(()))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_on_the_meta_device_and_among_fake_tensors_nothing_is_drawn() -> None:
    state = torch.get_rng_state()
    with torch.device("meta"):
        layer = ParallelLinear(1 << 20, 1 << 20, dim=1, group=group_of(1))
    with FakeTensorMode():
        ParallelEmbedding(1 << 20, 1 << 20, dim=0, group=group_of(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.weight.is_meta


def filled_later() -> bool:
    torch.manual_seed(9)
    with torch.device("meta"):
        model = nn.Sequential(ParallelLinear(6, 5, dim=1), ParallelEmbedding(7, 3, 2, dim=0))
    model.to_empty(device="cpu")
    for layer in model:
        layer.reset_parameters()
    torch.manual_seed(9)
    now = nn.Sequential(ParallelLinear(6, 5, dim=1), ParallelEmbedding(7, 3, 2, dim=0))
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), now.parameters(), strict=True))


def test_layers_built_on_the_meta_device_are_filled_by_reset_parameters() -> None:
    assert run(2, filled_later) == [True, True]


def test_no_more_than_a_block_is_held_beside_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    empty = torch.empty

    def watched(*shape: Any, **named: Any) -> Tensor:
        nonlocal largest
        made = empty(*shape, **named)
        largest = max(largest, made.untyped_storage().nbytes())
        return made

    part = torch.empty(1000, 100)
    monkeypatch.setattr(torch, "empty", watched)
    monkeypatch.setattr(restoke_init, "BLOCK", 1000)
    sharded_(nn.init.kaiming_normal_, part, Shard(group_of(1), 0, 1000))
    assert largest == 4 * 1000
