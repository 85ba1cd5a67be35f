"""`torchshard.distributed`: the group that layers are shared over, and collectives over it that gradients pass through."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from restoke import distributed
from restoke.data.group_sampler import DistributedGroupSampler
from restoke.distributed.groups import Group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError, WorldError
from restoke.facades.torchshard import guards, known
from restoke.nn.described import describe, plain, shard_of
from restoke.said import say_once

__all__ = [
    "DistributedGroupSampler",
    "copy",
    "destroy_process_group",
    "gather",
    "get_group",
    "get_group_size",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "reduce",
    "scatter",
]

is_initialized = distributed.is_initialized
_SINGLES: dict[int, Any] = {}  # torch's groups of one rank, by the rank


def init_process_group(group_size: int = -1) -> None:
    """Share layers over groups of so many neighbouring ranks; -1, or more than there are: over all. Every rank calls it.

    Raises:
        WorldError: there is no process group, groups were chosen before, or the ranks cannot be divided so.
    """
    if not (dist.is_available() and dist.is_initialized()):
        why = "there is no process group of torch's yet"
        raise WorldError.of("group_size", group_size, why, "torch.distributed.init_process_group first")
    if is_initialized():
        why = "groups were chosen before"
        raise WorldError.of("group_size", group_size, why, "destroy_process_group() first")
    world = dist.get_world_size()
    if group_size > world:
        say_once(f"torchshard: group_size={group_size}, and there are {world} ranks: layers are shared over all of them")
    group = distributed.init_process_group(world if group_size == -1 else min(group_size, world))
    if group.size == 1 and world > 1:
        _SINGLES.update({rank: dist.new_group([rank]) for rank in range(world) if rank not in _SINGLES})
    known.follow()
    guards.install()


def destroy_process_group() -> None:
    """Forget the choice; layers keep their groups."""
    guards.remove()
    known.unfollow()
    distributed.destroy_process_group()


def get_group() -> Any:
    """torch's group of the ranks that share layers, for collectives of one's own. Raises WorldError where none was chosen."""
    group = _chosen()
    return _SINGLES[dist.get_rank()] if group.handle is None and dist.get_world_size() > 1 else group.handle or dist.group.WORLD


def get_group_size() -> int:
    """How many ranks share layers."""
    return _chosen().size


def get_world_size() -> int:
    """The same: the size of the group, as TorchShard's documentation has it."""
    size = _chosen().size
    if size != dist.get_world_size():
        say_once(f"torchshard: get_world_size() is {size}, the group's size; TorchShard's was that of all ranks, and cut by it")
    return size


def get_rank() -> int:
    """This rank's place in its group."""
    return _chosen().rank


def _chosen() -> Group:
    if not is_initialized():
        raise WorldError.of("group", None, "no groups were chosen yet", "torchshard.distributed.init_process_group first")
    return distributed.default_group()


def copy(input: Tensor) -> Tensor:  # noqa: A002 (TorchShard's name, here and below)
    """The tensor itself; backward: the sum of the group's gradients. Nothing is changed in place."""
    return distributed.copy(_whole("copy", input), distributed.default_group())


def reduce(input: Tensor) -> Tensor:  # noqa: A002
    """The sum over the group, a new tensor; backward: the gradient as it is."""
    return distributed.reduce(plain(input), distributed.default_group())


def scatter(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002
    """This rank's part of what all ranks of the group hold alike, described; of a part along this dimension, itself."""
    group, shard = distributed.default_group(), shard_of(input)
    if shard is not None and _same(shard.dim, dim, input):
        return input
    _whole("scatter", input)
    if group.size == 1:
        return input
    return describe(distributed.scatter(input, dim, group), Shard(group, _from_end(dim, input), input.shape[dim]))


def gather(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002
    """Every rank's part, whole, on each.

    A part that is described is put together along its dimension, and its gradient is this rank's part. Any other tensor's
    rows (`dim=0`) are those of ranks with data of their own, and may differ in number: their gradient is that of the loss of
    all rows, however data parallelism averages.

    Raises:
        SpecError: it is a part along another dimension.
    """
    group, shard = distributed.default_group(), shard_of(input)
    if shard is not None:
        if not _same(shard.dim, dim, input):
            why = f"it is one rank's part of {shard.size} along dimension {shard.dim}"
            raise SpecError.of("dim", dim, why, f"gather(input, {shard.dim})")
        return distributed.gather(plain(input), dim, shard.group, shard.size)
    if dim % max(1, input.ndim) or group.size == 1:
        return distributed.gather(input, dim, group)
    if input.requires_grad:
        _say_scale(group)
    return distributed.gather_rows(input, group)


def _say_scale(group: Group) -> None:
    times = f"{group.size} times TorchShard's, which DDP's average made too small"
    say_once(f"torchshard: gather(x, dim=0) gives back the gradient of the loss over all rows: {times}")


def _whole(name: str, tensor: Tensor) -> Tensor:
    shard = shard_of(tensor)
    if shard is not None:
        why = f"it is one rank's part of {shard.size} along dimension {shard.dim}"
        raise SpecError.of(name, tuple(tensor.shape), why, "gather it before")
    return tensor


def _same(dim: int, other: int, tensor: Tensor) -> bool:
    return dim % tensor.ndim == other % tensor.ndim


def _from_end(dim: int, tensor: Tensor) -> int:
    """The last dimension stays the last when others are folded."""
    return -1 if dim % tensor.ndim == tensor.ndim - 1 else dim
