"""What TorchShard's scripts say, and ask, of tensors: along which dimension one is a part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from restoke import nn as sharded
from restoke.facades.torchshard import known
from restoke.facades.torchshard.sizes import check_divisibility
from restoke.nn import get_parallel_dim
from restoke.nn.described import Part

__all__ = [
    "TORCH_VERSION",
    "get_parallel_dim",
    "register_parallel_attribute",
    "register_parallel_dim",
    "set_attribute",
    "slice_evenly",
]

TORCH_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def set_attribute(tensor: Tensor, value: int | None = None, order_type: int = 0) -> None:
    """Of a parameter: that it is a shard. Of any other tensor: along which dimension it is a part."""
    if isinstance(tensor, nn.Parameter):
        register_parallel_attribute(tensor, value, order_type)
    else:
        register_parallel_dim(tensor, value)


def register_parallel_attribute(param: Tensor, value: int | None = None, order_type: int = 0) -> None:
    """Say of a parameter of a layer of one's own that it is this rank's shard, in place.

    Args:
        value: 1 or -1: outputs are cut, 0: inputs, None: nothing.
        order_type: 0: the tensor is laid out as a linear layer's weight, 1: as an embedding's.
    """
    if isinstance(param, Part):  # made by `scatter`: from here on a parameter like any other
        param.__class__ = nn.Parameter if isinstance(param, nn.Parameter) else Tensor  # type: ignore[assignment]
    sharded.register_parallel_attribute(param, value, order_type)
    known.tell(param)


def register_parallel_dim(tensor: Tensor, value: int | None = None) -> None:
    """Say of an activation along which dimension it is this rank's part, in place; None: that it is whole."""
    sharded.register_parallel_dim(tensor, value)


def slice_evenly(tensor: Tensor, num_partitions: int, dim: int = -1, contiguous: bool = False) -> tuple[Tensor, ...]:
    """Parts of one size. Raises SpecError where the dimension cannot be divided so (`restoke.nn.slice` cuts any)."""
    check_divisibility(tensor.shape[dim], num_partitions)
    return sharded.slice(tensor, num_partitions, dim, contiguous)
