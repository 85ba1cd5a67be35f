"""Shards that DistributedDataParallel is told of in time are neither overwritten nor averaged."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from restoke.distributed import gather_rows, group_of
from restoke.nn import ParallelLinear, convert_parallel_linear, register_ddp_parameters_to_ignore
from tests.nn.joined import refused, run


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.classifier = nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(4, 6)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(gather_rows(self.backbone(x), group_of()))  # type: ignore[no-any-return]


def under_ddp() -> list[Any]:
    torch.manual_seed(dist.get_rank())
    model = Deep()
    convert_parallel_linear(model, 1, names="classifier.*")
    names = register_ddp_parameters_to_ignore(model)
    before = model.classifier[1][0].weight.detach().clone()
    wrapped = nn.parallel.DistributedDataParallel(model)
    kept = torch.equal(model.classifier[1][0].weight, before)
    wrapped(torch.full((2, 4), 1.0 + dist.get_rank())).pow(2).sum().backward()
    late = refused(register_ddp_parameters_to_ignore, wrapped)
    holder = nn.ModuleDict({"inner": wrapped})
    nested = refused(register_ddp_parameters_to_ignore, holder)
    grads = [model.classifier[1][0].weight.grad[:, 0].tolist(), model.backbone.weight.grad.sum().item()]
    return [names, kept, "is wrapped already" in late, "inner is wrapped already" in nested, *grads]


def test_nested_shards_are_left_alone_by_ddp_when_told_in_time() -> None:
    first, second = run(2, under_ddp)
    assert first[:4] == second[:4] == [["classifier.1.0.weight", "classifier.1.0.bias"], True, True, True]
    assert first[4] != second[4]  # each its own: not averaged
    assert first[5] == second[5]  # the backbone's is


def own_head_under_ddp() -> list[Any]:
    head = ParallelLinear(3, 4, dim=1)
    head._ddp_params_and_buffers_to_ignore = ["mine"]
    names = register_ddp_parameters_to_ignore(head)
    model = nn.ModuleDict({"head": head, "tail": nn.Linear(2, 2)})
    model["again"] = nn.Module()
    model["again"].weight = head.weight
    return [names, head._ddp_params_and_buffers_to_ignore, register_ddp_parameters_to_ignore(model)]


def test_roots_and_tied_names_are_on_the_list_too_beside_what_stood_there() -> None:
    listed = ["mine", "weight", "bias", ".weight", ".bias"]
    assert run(2, own_head_under_ddp) == [[["weight", "bias"], listed, ["head.weight", "head.bias", "again.weight"]]] * 2
