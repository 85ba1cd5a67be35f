"""The collectives and tensor utilities as functions of their own, over the ranks of this process's job."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import Tensor

from restoke.facades.accelerate import collectives
from restoke.facades.accelerate.agree import DistributedOperationException
from restoke.facades.accelerate.state import PartialState
from restoke.facades.accelerate.trees import (
    concatenate,
    convert_to_fp32,
    find_batch_size,
    get_data_structure,
    get_shape,
    honor_type,
    ignorant_find_batch_size,
    initialize_tensors,
    is_namedtuple,
    is_tensor_information,
    is_torch_tensor,
    listify,
    recursively_apply,
    send_to_device,
    slice_tensors,
)
from restoke.world import World

__all__ = [
    "DistributedOperationException",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "copy_tensor_to_devices",
    "find_batch_size",
    "gather",
    "gather_object",
    "get_data_structure",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "initialize_tensors",
    "is_namedtuple",
    "is_tensor_information",
    "is_torch_tensor",
    "listify",
    "pad_across_processes",
    "pad_input_tensors",
    "recursively_apply",
    "reduce",
    "send_to_device",
    "slice_tensors",
]


def _world() -> World:
    return PartialState().world


def gather(tensor: Any) -> Any:
    """The tensors of all ranks, joined along the first dimension. Every rank calls this."""
    return collectives.gather(tensor, _world())


def gather_object(object: Any) -> Any:  # noqa: A002 - the name that scripts write
    """The lists of all ranks, joined. Every rank calls this."""
    return collectives.gather_object(object, _world())


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """The tensors as that rank has them. Every rank calls this."""
    return collectives.broadcast(tensor, from_process, _world())


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """The objects as that rank has them, in the same list. Every rank calls this."""
    return collectives.broadcast_objects(object_list, from_process, _world())


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """The "mean", "sum", "max" or "min" over all ranks. Every rank calls this."""
    return collectives.reduce(tensor, reduction, scale, _world())


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
    """Tensors as long in `dim` as the longest of all ranks. Every rank calls this."""
    return collectives.pad(tensor, dim, pad_index, pad_first, _world())


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Tensors whose length in `dim` is the next multiple of `num_processes`: the last entry is repeated."""

    def one(item: Tensor) -> Tensor:
        lacking = -batch_size % num_processes
        last = item.narrow(dim, item.shape[dim] - 1, 1)
        return torch.cat([item, *[last] * lacking], dim=dim) if lacking else item

    return recursively_apply(one, tensor, error_on_other_type=True)


def copy_tensor_to_devices(tensor: Tensor | None = None) -> Tensor:
    """Rank 0's tensor on every rank, whose shape the others need not know. Every rank calls this."""
    world = _world()
    told: list[Any] = [None if tensor is None else (tuple(tensor.shape), tensor.dtype)]
    collectives.broadcast_objects(told, 0, world)
    shape, dtype = told[0]
    mine = (
        tensor.to(world.device)
        if tensor is not None and world.is_main
        else torch.empty(shape, dtype=dtype, device=world.device)
    )
    copied: Tensor = collectives.broadcast(mine, 0, world)
    return copied


class ConvertOutputsToFp32:
    """A forward whose outputs come back in float32."""

    def __init__(self, model_forward: Any) -> None:
        self.model_forward = model_forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __getstate__(self) -> Any:
        raise pickle.PicklingError("Cannot pickle a prepared model with automatic mixed precision: unwrap_model(model) first")


def convert_outputs_to_fp32(model_forward: Any) -> Any:
    """The forward, whose outputs come back in float32."""
    converted = ConvertOutputsToFp32(model_forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return converted(*args, **kwargs)

    return forward
