"""What TorchShard got wrong in losses, states and tensors is right here, or refused."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from restoke.errors import RestokeError, SpecError
from restoke.facades import torchshard as ts
from tests.facades.torchshard.scripting import run
from tests.nn.joined import refused

D = ts.distributed


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
