"""Tensor parallelism over FSDP2's shards: what the model code sees of its parameters, and what ranks agree on before a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from restoke.errors import SpecError
from restoke.meshes import mesh
from restoke.parts import Stepper
from restoke.passes.tensor_plan import AXIS, find_layers
from restoke.precision import spread_overflow
from restoke.spec import Clip, Spec
from restoke.world import World

UNLIKE = 0.05  # of the larger norm; gradients of shares differ by far more, those of the same work by rounding alone


def show_plain(model: nn.Module, spec: Spec) -> None:
    """Gathered parameters of layers that the plan leaves out are plain tensors, since their inputs are.

    Their shards stay DTensors on the whole mesh: torch clips, unscales and steps parameters together on one mesh alone.
    """
    planned = {id(layer.module) for layer in find_layers(model, spec)}
    for module in model.modules():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        for held in group.fsdp_params if group is not None else ():
            if id(held._module_info.module) not in planned:
                held.is_dtensor, held._unsharded_dtensor_spec = False, None


def in_agreement(stepper: Stepper, model: nn.Module, world: World) -> Stepper:
    """The same steps; before them ranks that share layers agree whether one overflowed, and in the first, on gradients.

    Raises:
        SpecError: from the first step, a parameter that these ranks hold whole has different gradients on them.
    """
    if world.tensor == 1:
        return stepper
    named = [(name, p) for name, p in model.named_parameters() if isinstance(p, DTensor)]
    layers = {name for name, module in model.named_modules() if next(module.children(), None) is None}
    settled, checked = [False], [False]

    def settle() -> None:
        if settled[0]:
            return
        settled[0] = True
        if stepper.scaler is not None:
            grads = [_part(p.grad) for _, p in named if p.grad is not None]
            spread_overflow(grads, grads, world.device)
        checked[0] = checked[0] or _check_alike(named, layers, world)

    def clip(how: Clip) -> Tensor | None:
        settle()
        return stepper.clip(how)

    def step() -> bool:
        settle()
        settled[0] = False
        return stepper.step()

    return evolve(stepper, clip=clip, step=step)


def _part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _check_alike(named: Sequence[tuple[str, Tensor]], layers: Collection[str], world: World) -> bool:
    """Whether it could be told: not where gradients overflowed, or there are none."""
    whole = [(name, p.grad) for name, p in named if p.grad is not None and isinstance(p.grad, DTensor)]
    whole = [(name, grad) for name, grad in whole if isinstance(grad.placements[-1], Replicate)]
    if not whole:
        return bool(named)
    norms = torch.stack([torch.linalg.vector_norm(_part(grad).float()) for _, grad in whole])
    ends = torch.cat([norms, -norms]).to(world.device)
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=mesh(world)["tensor"].get_group())
    if not torch.isfinite(ends).all():
        return False
    most, least = ends.chunk(2)
    apart = (most + least > UNLIKE * most).tolist()
    if any(apart):
        name = whole[apart.index(True)][0]
        why = "the ranks that share layers have different gradients of it: it works on a share of the heads or the sequence"
        owner = name.rpartition(".")[0]
        instead = f"heads or sequence for {owner}" if owner in layers else "a norm of your own for it, with the style heads"
        raise SpecError.of(AXIS, f"without {name}", why, instead)
    return True
