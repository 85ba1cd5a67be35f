"""While groups are chosen, what scripts take from torch itself does right by shards: DDP, the loss scaler, clipping, ZeRO."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from restoke.distributed.groups import Group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.facades.torchshard.copies import register_ddp_parameters_to_ignore
from restoke.facades.torchshard.known import by_gradient, by_identity

_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
_INSTALLED: list[tuple[Any, str, Any]] = []


def install() -> None:
    """Put them in place; twice is once."""
    if not _INSTALLED:
        _replace(DistributedDataParallel, "__init__", _ddp)
        _replace(GradScaler, "_unscale_grads_", _unscaling)
        _replace(clip_grad, "_get_total_norm", _norm)
        _replace(Optimizer, "add_param_group", _optimizer)


def remove() -> None:
    """Leave torch as it was."""
    while _INSTALLED:
        owner, name, original = _INSTALLED.pop()
        setattr(owner, name, original)


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = vars(owner)[name]
    _INSTALLED.append((owner, name, original))
    setattr(owner, name, wrap(original))


def _ddp(original: Any) -> Any:
    """DDP is told which parameters are no copies."""

    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        register_ddp_parameters_to_ignore(module)
        original(self, module, *args, **kwargs)

    return init


def _unscaling(original: Any) -> Any:
    """An overflow in one rank's shard is every rank's: all skip the step, and all lower the scale."""

    def unscale(self: Any, optimizer: Optimizer, *args: Any) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = original(self, optimizer, *args)
        shards = by_identity()
        params = [param for group in optimizer.param_groups for param in group["params"]]
        groups = {id(shard.group): shard.group for param in params if (shard := shards.get(id(param))) is not None}
        for group in groups.values():
            flag = torch.stack([each.to(params[0].device) for each in found.values()] or [torch.zeros(1)]).amax(0)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=group.handle)
            found = {device: flag.to(device) for device in found or [params[0].device]}
        return found

    return unscale


def _norm(original: Any) -> Any:
    """The norm that gradients are clipped by counts every rank's shards, and copies once."""

    def total(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Tensor:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        shards = by_gradient()
        own = {id(each): shard for each in tensors if (shard := shards.get(id(each))) is not None}
        if not own:
            return original(tensors, norm_type, *args, **kwargs)  # type: ignore[no-any-return]
        device = tensors[0].device
        norms = [original([each for each in tensors if id(each) not in own], norm_type, *args, **kwargs).to(device)]
        for group in {id(shard.group): shard.group for shard in own.values()}.values():
            mine = [each for each in tensors if id(each) in own and own[id(each)].group is group and each.numel()]
            norms.append(_over(group, original(mine, norm_type, *args, **kwargs).to(device), float(norm_type)))
        whole: Tensor = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]), norm_type)
        return whole

    return total


def _over(group: Group, norm: Tensor, p: float) -> Tensor:
    if p == float("inf"):
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group.handle)
        return norm
    power = norm.float() ** p
    dist.all_reduce(power, group=group.handle)
    return power ** (1 / p)


def _optimizer(original: Any) -> Any:
    """ZeroRedundancyOptimizer sends each parameter from one rank to all: a shard would be overwritten by another."""

    def add(self: Optimizer, param_group: dict[str, Any]) -> None:
        original(self, param_group)
        zero = sys.modules.get(_ZERO)
        if zero is not None and isinstance(self, vars(zero)["ZeroRedundancyOptimizer"]):
            _refuse_shards(self.param_groups[-1]["params"], by_identity())

    return add


def _refuse_shards(params: list[Tensor], shards: dict[int, Shard]) -> None:
    for param in params:
        shard = shards.get(id(param))
        if shard is not None:
            got = f"a shard of shape {tuple(param.shape)} over {shard.group.size} ranks"
            why = "ZeroRedundancyOptimizer takes parameters for copies, and would write one rank's shard over all others'"
            instead = "ZeroRedundancyOptimizer of the other parameters and a plain optimizer of the shards, or strategy=zero1"
            raise SpecError.of("optimizer", got, why, instead)
