"""What TorchShard got wrong in training is right here, or refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke.facades import torchshard as ts
from restoke.nn import plain
from tests.facades.torchshard.scripting import run
from tests.nn.joined import refused

D = ts.distributed


def grads(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients, on rank 0."""
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.zeros_like(param) if param.grad is None else param.grad)
    return dict(ts.collect_state_dict(model, model.state_dict()))


class Net(nn.Module):
    """A backbone, and a nested head that may be shared."""

    def __init__(self, gathers: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.backbone = nn.Linear(5, 6)
        self.classifier = nn.Sequential(nn.ReLU(), nn.Linear(6, 7))
        self.gathers = gathers

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(x)
        return self.classifier(D.gather(x, dim=0) if self.gathers else x)  # type: ignore[no-any-return]


def batch(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(4, 5, generator=generator), torch.randint(7, (4,), generator=generator)


def gradients(dim: int | None) -> dict[str, Tensor]:
    D.init_process_group(dist.get_world_size())
    model, (x, y) = Net(dim is not None), batch(dist.get_rank())
    if dim is not None:
        ts.nn.ParallelLinear.convert_parallel_linear(model.classifier, dim=dim)
        y = D.gather(y, dim=0)
    ddp = DistributedDataParallel(model)
    ts.nn.ParallelCrossEntropyLoss()(ddp(x), y).backward()
    return grads(model)


@pytest.mark.parametrize("n", [2, 4])
def test_1_gradients_before_the_gather_are_ddps(n: int) -> None:
    whole = run(n, gradients, None)[0]
    for dim in (0, 1):
        shared = run(n, gradients, dim)[0]
        assert list(shared) == list(whole)
        for name, grad in shared.items():
            torch.testing.assert_close(grad, whole[name], rtol=0, atol=1e-7)


def zero_groups() -> list[str]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    D.init_process_group(2)
    layer, plain = ts.nn.ParallelLinear(4, 6, dim=1), nn.Linear(4, 4)
    optimizer = ZeroRedundancyOptimizer(plain.parameters(), torch.optim.SGD, lr=0.1)
    told = [
        refused(optimizer.add_param_group, {"params": list(layer.parameters())}),
        refused(lambda: ZeroRedundancyOptimizer([*plain.parameters(), layer.weight], torch.optim.SGD, lr=0.1)),
    ]
    D.destroy_process_group()
    ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=0.1)  # torch is as it was
    return told


def test_2_zero_over_shards_is_refused_group_by_group() -> None:
    for told in run(2, zero_groups):
        assert all("a shard of shape (3, 4) over 2 ranks" in each and "strategy=zero1" in each for each in told)


def smaller_groups() -> dict[str, Any]:
    D.init_process_group(2)
    layer = ts.nn.ParallelLinear(8, 8, dim=1)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(dist.get_rank() // 2))
    out = layer(x)
    whole = D.gather(out, dim=-1)
    handle = D.get_group()
    return {
        "weight": tuple(layer.weight.shape),
        "sizes": (D.get_world_size(), D.get_group_size(), dist.get_world_size(handle)),
        "rank": (D.get_rank(), dist.get_rank(handle)),
        "whole": tuple(whole.shape),
        "apart": float((whole[:, D.get_rank() * 4 :][:, :4] - plain(out)).abs().max()),
        "sum": whole.detach().sum().item(),
    }


def test_5_groups_smaller_than_the_world_cut_by_their_own_size() -> None:
    found = run(4, smaller_groups)
    for rank, each in enumerate(found):
        assert each["weight"] == (4, 8)
        assert each["sizes"] == (2, 2, 2)
        assert each["rank"] == (rank % 2, rank % 2)
        assert each["whole"] == (3, 8)
        assert each["apart"] == 0
    sums = [each["sum"] for each in found]
    assert sums[0] == sums[1] != sums[2] == sums[3]


def trained_in_groups() -> float:
    """Peers of two groups, with data of their own, against one process with all of it."""
    D.init_process_group(2)
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(5, 6), ts.nn.ParallelLinear(6, 7, dim=1))
    model[1].weight.data.mul_(1 + dist.get_rank() // 2)  # unlike the other group's
    ts.register_ddp_parameters_to_ignore(model)
    ddp = DistributedDataParallel(model)
    start = copy.deepcopy(dict(ts.collect_state_dict(model, model.state_dict())))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for _ in range(2):  # two backwards for one step
        x, y = batch(dist.get_rank() // 2)
        (ts.nn.ParallelCrossEntropyLoss()(ddp(x), y) / 2).backward()
    optimizer.step()
    end = ts.collect_state_dict(model, model.state_dict())
    if dist.get_rank():
        return 0.0
    whole = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 7))
    whole.load_state_dict(start)
    both = [batch(0), batch(1)]
    F.cross_entropy(whole(torch.cat([x for x, _ in both])), torch.cat([y for _, y in both])).backward()
    with torch.no_grad():
        return max(float((p - 0.5 * p.grad - end[name]).abs().max()) for name, p in whole.named_parameters())  # type: ignore[operator]


def test_5_groups_with_data_of_their_own_average_the_shards_that_they_both_hold() -> None:
    assert max(run(4, trained_in_groups)) <= 1e-6


def alone() -> list[int]:
    D.init_process_group(1)
    total = torch.ones(())
    dist.all_reduce(total, group=D.get_group())
    return [dist.get_world_size(D.get_group()), D.get_group_size(), D.get_rank(), int(total)]


def test_5_groups_of_one_are_no_groups_of_all() -> None:
    assert run(2, alone) == [[1, 1, 0, 1]] * 2


def nested_heads() -> list[Any]:
    D.init_process_group(2)
    model = Net(True)
    converted = ts.nn.ParallelLinear.convert_parallel_linear(copy.deepcopy(model).classifier, dim=1)
    model.classifier = converted
    names = ts.register_ddp_parameters_to_ignore(model)
    before = model.classifier[1].weight.detach().clone()
    ddp = DistributedDataParallel(model)
    late = refused(ts.register_ddp_parameters_to_ignore, ddp)
    return [names, bool((before == model.classifier[1].weight).all()), before.sum().item(), late]


def test_6_nested_heads_are_left_alone_by_ddp() -> None:
    first, second = run(2, nested_heads)
    assert first[0] == second[0] == ["classifier.1.weight", "classifier.1.bias"]
    assert first[1]
    assert second[1]
    assert first[2] != second[2]
    assert "before" in first[3]


def row_bias() -> list[Any]:
    D.init_process_group(2)
    torch.manual_seed(dist.get_rank())
    layer = ts.nn.ParallelLinear(6, 5, dim=0)
    start = layer.bias.detach().clone()
    ddp = DistributedDataParallel(layer)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    (ddp(x) * (1 + dist.get_rank())).sum().backward()
    return [start, layer.bias.grad, list(ts.register_ddp_parameters_to_ignore(nn.Sequential(layer)))]


def test_7_the_bias_of_a_layer_by_rows_begins_alike_and_is_averaged() -> None:
    first, second = run(2, row_bias)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert first[1].tolist() == [4.5] * 5
    assert first[2] == ["0.weight"]


def overflow(where: str) -> list[Any]:
    D.init_process_group(2)
    layer, plain = ts.nn.ParallelLinear(4, 6, dim=1), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*layer.parameters(), *plain.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    for param in (*layer.parameters(), *plain.parameters()):
        param.grad = torch.ones_like(param)
    if where == "shard of rank 1" and dist.get_rank() == 1:
        layer.weight.grad[0, 0] = float("inf")  # type: ignore[index]
    before = plain.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    return [bool((before == plain.weight).all()), scaler.get_scale()]


def test_8_an_overflow_in_one_ranks_shard_is_skipped_by_all() -> None:
    assert run(2, overflow, "shard of rank 1") == [[True, 512.0]] * 2
    assert run(2, overflow, "nowhere") == [[False, 1024.0]] * 2


def norms(p: float) -> list[float]:
    D.init_process_group(2)
    layer, plain = ts.nn.ParallelLinear(4, 7, dim=1), nn.Linear(3, 2)
    whole = [torch.randn(7, 4, generator=torch.Generator().manual_seed(1)), torch.arange(7.0)]
    for param, full in zip(layer.parameters(), whole, strict=True):
        param.grad = layer.shards["weight"].of(full).clone()  # type: ignore[union-attr]
    for param in plain.parameters():
        param.grad = torch.full_like(param, 0.5)
    everything = torch.cat([full.reshape(-1) for full in whole] + [torch.full((8,), 0.5)])
    model = nn.ModuleList([layer, plain])
    got = nn.utils.clip_grad_norm_(model.parameters(), 1.0, p)
    after = nn.utils.get_total_norm([param.grad for param in plain.parameters()], p)
    return [float(got), float(torch.linalg.vector_norm(everything, p)), float(after)]


@pytest.mark.parametrize("p", [2.0, 1.0, math.inf])
def test_9_the_norm_that_is_clipped_by_is_that_of_the_whole(p: float) -> None:
    first, second = run(2, norms, p)
    assert first == second
    assert first[0] == pytest.approx(first[1], rel=1e-6)
    halves = float(torch.linalg.vector_norm(torch.full((8,), 0.5), p))
    assert first[2] == pytest.approx(halves / first[1], rel=1e-4)
