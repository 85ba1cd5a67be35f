"""Which dimension of a tensor is shared out, in the words of TorchShard: None, 0, 1 or -1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from restoke.distributed.collectives import exchange_lengths
from restoke.distributed.groups import Group, get_group
from restoke.distributed.messages import message_device
from restoke.distributed.shards import Shard, cut
from restoke.errors import SpecError
from restoke.nn.described import Lost, Part, describe, plain, shard_of
from restoke.nn.registry import MARK

DIMS = (None, 0, 1, -1)
SAID = "restoke_parallel_dim"  # on a parameter of a layer, as the layer was told it


def checked_dim(dim: int | None) -> int | None:
    """The dimension, if it is one of the four.

    Raises:
        SpecError: it is not.
    """
    if dim not in DIMS or isinstance(dim, bool):
        raise SpecError.of("dim", dim, "a layer is cut along one of two dimensions, or not at all", "None, 0, 1 or -1")
    return dim


def get_parallel_dim(tensor: Tensor) -> int | None:
    """The dimension along which the tensor is one rank's part: what its layer was told, or what is known of an activation.

    Raises:
        SpecError: it was made of a part by an operation that does not tell of which whole the result is.
    """
    said: int | None = vars(tensor).get(SAID)
    if said is not None:
        return said
    shard = shard_of(tensor)
    return None if shard is None else -1 if shard.dim % tensor.ndim == tensor.ndim - 1 else shard.dim


def set_attribute(
    tensor: Tensor, value: int | None = None, order_type: int = 0, *, size: int | None = None, group: Group | None = None
) -> Tensor:
    """`register_parallel_attribute` for a parameter, `register_parallel_dim` for any other tensor."""
    if isinstance(tensor, nn.Parameter):
        return register_parallel_attribute(tensor, value, order_type, size=size, group=group)
    return register_parallel_dim(tensor, value, size=size, group=group)


def register_parallel_dim(
    tensor: Tensor, value: int | None = None, *, size: int | None = None, group: Group | None = None
) -> Tensor:
    """Say of an activation, in place, along which dimension it is this rank's part; None: that it is whole.

    Args:
        size: of the whole along that dimension. None: as it is known, else the ranks tell their lengths, and wait.

    Returns:
        The tensor itself.

    Raises:
        SpecError: its length there is not the one that this rank of the group holds.
    """
    dim, group = checked_dim(value), get_group(group)
    if dim is None or group.size == 1:
        return _become(tensor, plain(tensor))
    known = tensor._described if isinstance(tensor, Part) else None
    if size is None and known is not None and not isinstance(known, Lost) and known.dim % tensor.ndim == dim % tensor.ndim:
        return tensor
    size = whole_size(tensor.shape[dim], tensor.device, group) if size is None else size
    return _become(tensor, describe(plain(tensor), Shard(group, dim, size)))


def _become(tensor: Tensor, other: Tensor) -> Tensor:
    if type(tensor) is not type(other):
        tensor.__class__ = type(other)
    if isinstance(other, Part) and isinstance(tensor, Part):
        tensor._described = other._described
    return tensor


def register_parallel_attribute(
    param: Tensor, value: int | None = None, order_type: int = 0, *, size: int | None = None, group: Group | None = None
) -> Tensor:
    """Say of a parameter of no layer of ours, in place, that it is this rank's shard; whoever trains or saves it will know.

    Args:
        value: in the order (in, out) with `order_type` 0, which is the reverse of a linear layer's weight, and in that of
            the tensor with `order_type` 1. A tensor of one dimension, such as a bias, is cut by 1 and -1 only.
        size: of the whole along that dimension; None: the ranks tell their lengths.
    """
    dim, group = checked_dim(value), get_group(group)
    if order_type not in (0, 1):
        raise SpecError.of("order_type", order_type, "0 is that of a linear layer, 1 that of an embedding", "0 or 1")
    vars(param)[SAID], vars(param)[MARK] = dim, None
    cut_dim = shard_dim(param.ndim, dim, order_type)
    if cut_dim is not None and group.size > 1:
        size = whole_size(param.shape[cut_dim], param.device, group) if size is None else size
        vars(param)[MARK] = fitting(param, Shard(group, cut_dim, size))
    return param


def shard_dim(ndim: int, dim: int | None, order_type: int) -> int | None:
    """Which dimension of the tensor that is."""
    if dim is None or ndim == 0:
        return None
    if ndim == 1:
        return None if order_type == 0 and dim == 0 else 0
    last = dim in (1, -1)
    return int(last) if order_type == 1 else int(not last)


def fitting(tensor: Tensor, shard: Shard) -> Shard:
    """The shard, if the tensor is one such part. Raises SpecError where it is not."""
    describe(tensor.detach(), shard)
    return shard


def whole_size(length: int, device: torch.device, group: Group) -> int:
    """The sum of all ranks' lengths: a small collective, and a wait for it.

    Raises:
        SpecError: on every rank, where they are no balanced parts.
    """
    lengths = exchange_lengths(length, device if device.type != "meta" else message_device(group), group)
    size = sum(lengths)
    if size < 1 or lengths != [cut(size, group.size, rank)[1] for rank in range(group.size)]:
        why = f"the ranks hold {lengths} of {size}: a whole is cut into parts that differ by one at most, longer ones first"
        raise SpecError.of("tensor", length, why, "restoke.nn.slice(whole, n), or Shard.of(whole)")
    return size


def slice(tensor: Tensor, num_partitions: int, dim: int = -1, contiguous: bool = False) -> tuple[Tensor, ...]:  # noqa: A001
    """All ranks' parts of a tensor, in order: views that differ by one element at most, or copies if `contiguous`."""
    size = tensor.shape[dim]
    parts = [tensor.narrow(dim, *cut(size, num_partitions, index)) for index in range(num_partitions)]
    return tuple(part.contiguous() if contiguous else part for part in parts)


def told(tensor: Tensor) -> Any:
    """The shard that a parameter was said to be; None where nothing was said."""
    return vars(tensor).get(MARK)
