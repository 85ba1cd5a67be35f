"""What TorchShard got wrong under these names is right here, or refused."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke.errors import RestokeError, SpecError
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


def losses() -> float:
    D.init_process_group(-1)
    logits, worst = torch.randn(6, 7, generator=torch.Generator().manual_seed(1)) * 3, 0.0
    target, weight = torch.tensor([0, 6, 3, -100, 3, 5]), torch.linspace(0.1, 2, 7)
    for reduction in ("none", "mean", "sum"):
        for ignored in (-100, 3):
            aims = target if ignored == -100 else target.clamp_min(0)
            options = {"weight": weight, "ignore_index": ignored, "reduction": reduction}
            part = D.scatter(logits.clone().requires_grad_(), dim=-1)
            loss = ts.nn.functional.parallel_cross_entropy(part, aims, **options)
            expected = F.cross_entropy(logits, aims, **options)
            assert loss.shape == expected.shape
            module = ts.nn.ParallelCrossEntropyLoss(weight, None, ignored, None, reduction)(part, aims)
            applied = ts.nn.functional.ParallelCrossEntropy.apply(part, aims, weight, None, ignored, None, reduction)
            worst = max(worst, *(float((each - expected).abs().max()) for each in (loss, module, applied)))
    old = ts.nn.ParallelCrossEntropyLoss(size_average=False)(part, target.clamp_min(0))
    return max(worst, float((old - F.cross_entropy(logits, target.clamp_min(0), reduction="sum")).abs()))


def test_3_weights_ignored_rows_and_every_reduction_are_as_torch_has_them() -> None:
    assert max(run(2, losses)) <= 2e-6


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


def half_logits() -> float:
    D.init_process_group(2)
    part = D.scatter(torch.zeros(2, 200_000, dtype=torch.float16).requires_grad_(), dim=-1)
    return float(ts.nn.functional.parallel_cross_entropy(part, torch.tensor([0, 199_999])))


def test_10_half_precision_logits_of_many_classes_do_not_overflow() -> None:
    assert run(2, half_logits) == pytest.approx([math.log(200_000)] * 2, rel=1e-6)


def lost() -> list[Any]:
    D.init_process_group(2)
    whole = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    part, y = D.scatter(whole.requires_grad_(), dim=-1), torch.tensor([0, 3, 2])
    kept = float(ts.nn.functional.parallel_cross_entropy(part * 1.0, y) - F.cross_entropy(whole, y))
    again = part.flip(-1).flip(-1)
    told = refused(ts.nn.functional.parallel_cross_entropy, again, y)
    ts.register_parallel_dim(again, -1)
    said = float(ts.nn.functional.parallel_cross_entropy(again, y) - F.cross_entropy(whole, y))
    unsaid = refused(ts.nn.functional.ParallelCrossEntropy.apply, torch.zeros(3, 4), y)
    return [kept, said, told, unsaid, ts.get_parallel_dim(part), ts.get_parallel_dim(whole)]


def test_11_what_is_known_of_a_part_is_kept_or_missed_aloud() -> None:
    for kept, said, told, unsaid, *dims in run(2, lost):
        assert abs(kept) <= 1e-6
        assert abs(said) <= 1e-6
        assert "flip" in told
        assert "register_parallel_dim(input, -1) before" in unsaid
        assert dims == [-1, None]


def states(folder: str) -> list[str]:
    D.init_process_group(2)
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(4, 6), ts.nn.ParallelLinear(6, 7, dim=1))
    whole = ts.collect_state_dict(model, model.state_dict(prefix="net."), prefix="net.")
    assert list(whole) == ([f"net.{name}" for name in model.state_dict()] if rank == 0 else [])
    told = [refused(torch.save, whole, f"{folder}/{rank}.pt")]
    other = nn.Sequential(nn.Linear(4, 6), ts.nn.ParallelLinear(6, 7, dim=1))
    other.load_state_dict(ts.relocate_state_dict(other, whole if rank == 0 else None, prefix="net."))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True) if a.shape[0] == 3)
    wrapped = DistributedDataParallel(model)
    again = ts.collect_state_dict(wrapped, wrapped.state_dict())
    assert not again or tuple(again["module.1.weight"].shape) == (7, 6)
    told += [refused(ts.collect_state_dict, model, {"head.weight": model[1].weight})]
    return [*told, refused(ts.relocate_state_dict, model, {"1.weight": torch.zeros(7, 5)})]


def test_13_states_keep_their_prefix_come_from_rank_0_and_unknown_names_are_refused(tmp_path: Path) -> None:
    first, second = run(2, states, str(tmp_path))
    assert first[0] == ""
    assert "save it on rank 0" in second[0]
    assert tuple(torch.load(tmp_path / "0.pt")["net.1.weight"].shape) == (7, 6)
    for told in (first, second):
        assert "head.weight is no name of the model" in told[1]
        assert "(7, 5)" in told[2]


def embeddings() -> list[Any]:
    D.init_process_group(2)
    torch.manual_seed(2)
    whole = nn.Embedding(8, 4, padding_idx=6, max_norm=1.0)
    ids, worst, shapes = torch.tensor([[0, 6, 5], [7, 6, 2]]), 0.0, []
    for dim in (0, 1, -1):
        model = nn.Sequential(copy.deepcopy(whole))
        ts.nn.ParallelEmbedding.convert_parallel_embedding(model, dim=dim)
        layer = model[0]
        shapes.append((tuple(layer.weight.shape), layer.padding_idx, layer.max_norm))
        reference = copy.deepcopy(whole)
        expected, out = reference(ids), layer(ids)
        expected.square().sum().backward()
        out.square().sum().backward()
        shard = layer.shards["weight"]
        worst = max(
            worst, float((out - expected).abs().max()), float((layer.weight.grad - shard.of(reference.weight.grad)).abs().max())
        )
        weight = layer.weight.detach().clone()
        bare = ts.nn.functional.parallel_embedding(ids, weight, 6, num_embeddings=8, dim=dim)
        worst = max(worst, float((bare - F.embedding(ids, reference.weight)).abs().max()))
    return [worst, shapes]


def test_14_embeddings_are_cut_where_they_are_told_and_keep_their_options() -> None:
    for worst, shapes in run(2, embeddings):
        assert worst <= 1e-6
        assert shapes == [((4, 4), 6, 1.0), ((8, 2), 6, 1.0), ((8, 2), 6, 1.0)]


def test_15_slice_cuts_the_last_dimension_unless_told_and_evenly() -> None:
    whole = torch.arange(12.0).view(2, 6)
    parts = ts.slice(whole, 3)
    assert [tuple(part.shape) for part in parts] == [(2, 2)] * 3
    assert torch.equal(torch.cat(parts, -1), whole)
    assert not parts[0].is_contiguous()
    assert all(part.is_contiguous() for part in ts.slice(whole, 3, dim=-1, contiguous=True))
    with pytest.raises(SpecError, match="no multiple of"):
        ts.slice(whole, 4)


def unchanged() -> list[Any]:
    D.init_process_group(2)
    rank = dist.get_rank()
    x = torch.full((2, 4), 1.0 + rank)
    total = D.reduce(x)
    leaf = torch.ones(3, requires_grad=True)
    out, grad = D.copy(leaf), torch.full((3,), 1.0 + rank)
    out.backward(grad)
    layer = ts.nn.ParallelLinear(3, 8, dim=1)
    torch.manual_seed(rank)
    ts.nn.init.shard_init_helper_(nn.init.normal_, layer.weight.data, mean=0.0, std=2.0)
    plain = torch.empty(2)
    ts.nn.init.shard_init_helper_(nn.init.constant_, plain, val=3.0)
    return [x[0, 0].item(), total[0, 0].item(), grad[0].item(), leaf.grad[0].item(), layer.weight.detach(), plain.tolist()]  # type: ignore[index]


def test_16_nothing_is_changed_in_place_and_shards_begin_as_parts_of_one_whole() -> None:
    first, second = run(2, unchanged)
    assert first[:4] == [1.0, 3.0, 1.0, 3.0]
    assert second[:4] == [2.0, 3.0, 2.0, 3.0]
    assert not torch.equal(first[4], second[4])
    assert first[5] == second[5] == [3.0, 3.0]
    alone = run(1, unchanged)[0]
    assert torch.equal(alone[4], torch.cat([first[4], second[4]]))


def attention() -> list[Any]:
    D.init_process_group(2)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    whole = copy.deepcopy(model)
    ts.nn.ParallelLinear.convert_parallel_linear(model, dim=0)
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    return [float((model(x) - whole(x)).abs().max()), tuple(model.self_attn.out_proj.weight.shape)]


def test_17_layers_whose_weights_others_read_stay_whole() -> None:
    for apart, shape in run(2, attention):
        assert apart <= 1e-6
        assert shape == (8, 8)


def misused() -> list[str]:
    told = [refused(D.get_group), refused(D.get_rank)]
    told.append(refused(D.init_process_group, 3))
    D.init_process_group(8)
    told += [refused(D.init_process_group, 2), str(D.get_group_size())]
    part = D.scatter(torch.zeros(4, 6).requires_grad_(), dim=-1)
    assert D.scatter(part, dim=-1) is part
    told += [refused(D.gather, part, 0), refused(D.copy, part), refused(D.scatter, part, 0)]
    return told


def own_parameter() -> list[Any]:
    D.init_process_group(2)
    layer = nn.Module()
    layer.weight = nn.Parameter(D.scatter(torch.ones(4, 7), dim=1))
    layer.bias = nn.Parameter(D.scatter(torch.ones(4), dim=0))
    ts.set_attribute(layer.weight, 0)
    ts.register_parallel_attribute(layer.bias, 0, order_type=1)
    names = ts.register_ddp_parameters_to_ignore(layer)
    dims = [ts.get_parallel_dim(param) for param in layer.parameters()]
    return [*(type(param) is nn.Parameter and param.is_leaf for param in layer.parameters()), names, dims]


def test_weights_that_a_script_cuts_are_parameters_like_any_other() -> None:
    assert run(2, own_parameter) == [[True, True, ["weight", "bias"], [0, 0]]] * 2


def test_misuse_is_refused_on_every_rank() -> None:
    for told in run(4, misused):
        assert "no groups were chosen yet" in told[0]
        assert "no groups were chosen yet" in told[1]
        assert "one of 1, 2, 4" in told[2]
        assert "destroy_process_group() first" in told[3]
        assert told[4] == "4"
        assert "gather(input, -1)" in told[5]
        assert all("gather it before" in each for each in told[6:])


def test_without_a_process_group_it_says_what_is_missing() -> None:
    if not dist.is_initialized():
        with pytest.raises(RestokeError, match="torch.distributed.init_process_group first"):
            D.init_process_group(1)
