"""What DDP must leave alone, since it takes every parameter for a copy; and the same shards of several groups, kept alike."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from restoke.distributed.groups import Group
from restoke.facades.torchshard import known
from restoke.nn import shards_of
from restoke.nn.ignored import register_ddp_parameters_to_ignore as ignore

_KEPT = "restoke_kept_alike"  # on a parameter


def register_ddp_parameters_to_ignore(module: nn.Module) -> list[str]:
    """Let DDP leave the module's shards alone, by every name that they have; call it before DDP is made.

    Where several groups hold the same shards, these begin with the first group's values, and their gradients are averaged.

    Returns:
        The names.

    Raises:
        SpecError: DDP has been made.
    """
    names = ignore(module)
    known.note_model(module)
    named: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, shard in shards_of(module).items():
        if shard.group.peers is not None:
            _keep_alike(named[name], shard.group.peers)
    return names


def _keep_alike(tensor: Tensor, peers: Group) -> None:
    if vars(tensor).get(_KEPT):
        return
    vars(tensor)[_KEPT] = True
    dist.broadcast(tensor.data, peers.ranks[0], group=peers.handle)
    if not isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
        return

    def average(param: Any) -> None:
        """Of what has accumulated: an average of averages is itself."""
        param.grad.div_(peers.size)
        dist.all_reduce(param.grad, group=peers.handle)

    tensor.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]
