"""The styles of a plan as torch's own: parameters become DTensors on the tensor axis, inputs and outputs stay plain tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.modules.dropout import _DropoutNd

from restoke.passes.tensor_plan import Layer, shares_sequence
from restoke.world import World

SEQUENCE = -2  # the dimension of a sequence, before that of the features


def shard_layers(model: nn.Module, layers: list[Layer], mesh: DeviceMesh, world: World) -> None:
    """Each parameter, module by module, on the tensor axis: cut as the layer's style says, or whole on each rank."""
    planned = {id(layer.module): layer for layer in layers}
    between = Shard(SEQUENCE) if shares_sequence(layers) else Replicate()
    counts = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    tied: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # what they were, kept alive for its id, and what they are
    for module in model.modules():
        before = {name: p for name, p in module._parameters.items() if p is not None and p.ndim}
        for p in before.values():
            if id(p) not in tied:
                _start_alike(p, world)
        layer = planned.get(id(module))
        if layer is None:
            _keep_whole(module, mesh, before)
        else:
            _apply(layer, mesh, between)
        for name, p in before.items():
            made = _alone(module._parameters[name], p)
            module._parameters[name] = tied.setdefault(id(p), (p, made))[1] if counts[id(p)] > 1 else made


@torch.no_grad()
def _start_alike(p: nn.Parameter, world: World) -> None:
    if not p.is_meta:
        p.data = p.data.to(world.device)
        dist.broadcast(p.data, src=0)


def _alone(made: Tensor | None, p: nn.Parameter) -> nn.Parameter:
    """Without the rest of the whole that torch cut it from, whose memory it would keep."""
    assert isinstance(made, DTensor)
    part = made.to_local().detach()
    part = part if part.is_meta or part.untyped_storage().nbytes() == part.nbytes else part.clone()
    cut = DTensor.from_local(part, made.device_mesh, made.placements, run_check=False, shape=p.shape, stride=p.stride())
    return nn.Parameter(cut, p.requires_grad)


def _keep_whole(module: nn.Module, mesh: DeviceMesh, own: dict[str, nn.Parameter]) -> None:
    """torch clips, unscales and steps parameters together where they lie on one mesh alone."""
    for name, p in own.items():
        whole = DTensor.from_local(p.detach(), mesh, [Replicate()], run_check=False)
        module._parameters[name] = nn.Parameter(whole, p.requires_grad)


def _apply(layer: Layer, mesh: DeviceMesh, between: Placement) -> None:
    module = layer.module
    if isinstance(module, nn.Embedding) and between != Replicate():
        module.register_forward_pre_hook(_divisible(layer, mesh.size()))
    if isinstance(module, nn.Embedding) and layer.style == "sequence":
        _embed_a_share(module, mesh)
    elif isinstance(module, _DropoutNd):
        _drop_a_share(module, mesh)
    else:
        if layer.style == "rows" and isinstance(module, nn.Linear):
            _take_whole_inputs(module, mesh, between)
        parallelize_module(module, mesh, _style(layer, between), src_data_rank=None)


def _style(layer: Layer, between: Placement) -> ParallelStyle:
    if layer.style in ("sequence", "heads"):
        return SequenceParallel(sequence_dim=SEQUENCE, use_local_output=True)
    if isinstance(layer.module, nn.Embedding):
        kind = ColwiseParallel if layer.style == "columns" else RowwiseParallel
        return kind(input_layouts=Replicate(), output_layouts=between)
    if layer.style == "rows":
        return RowwiseParallel(output_layouts=between)
    return ColwiseParallel(input_layouts=between, output_layouts=Replicate() if layer.style == "vocabulary" else Shard(-1))


def _divisible(layer: Layer, ranks: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def check(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if (length := inputs[0].shape[-1]) % ranks:
            why = f"a sequence of {length} cannot be shared out over {ranks} ranks"
            raise layer.refused(why, f"batches padded to a multiple of {ranks}, or a plan without the sequence style")

    return check


def _take_whole_inputs(module: nn.Linear, mesh: DeviceMesh, between: Placement) -> None:
    """A rows layer that no columns layer feeds gets whole inputs, as their width tells, and shares them out by itself."""

    def share(_: nn.Module, inputs: tuple[Any, ...]) -> Any:
        x, *others = inputs
        if x.shape[-1] != module.in_features:
            return None
        return DTensor.from_local(x, mesh, [between], run_check=False).redistribute(placements=[Shard(-1)]), *others

    module.register_forward_pre_hook(share)


def _embed_a_share(module: nn.Embedding, mesh: DeviceMesh) -> None:
    """Of positions, say: each rank looks up its share of the indices; the parameter's gradients are summed."""
    weight = module._parameters["weight"]
    assert weight is not None
    _keep_whole(module, mesh, {"weight": weight})

    def share(_: nn.Module, inputs: tuple[Any, ...]) -> Any:
        whole = DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(-1)])

    module.register_forward_pre_hook(share)
    module.register_forward_hook(lambda _, inputs, output: output.to_local())


def _drop_a_share(module: nn.Module, mesh: DeviceMesh) -> None:
    """The mask is drawn for the whole sequence on each rank, from generators that are alike, and this rank's share is used:
    the numbers are those that one rank alone would draw."""
    ranks, rank = mesh.size(), mesh.get_local_rank()
    forward = module.forward

    def share(x: Tensor) -> Any:
        if not module.training:
            return forward(x)
        mine = x.shape[SEQUENCE]
        whole = list(x.shape)
        whole[SEQUENCE] = mine * ranks
        return x * forward(x.new_ones(whole)).narrow(SEQUENCE, rank * mine, mine)

    module.forward = share
