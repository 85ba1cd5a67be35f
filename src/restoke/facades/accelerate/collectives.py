"""Collectives over nested tensors and over objects. Every rank calls them alike; one that does not is named on all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from restoke import comm
from restoke.errors import DataError, nearest
from restoke.facades.accelerate.agree import agree, describe
from restoke.facades.accelerate.trees import leaves, recursively_apply
from restoke.world import World

REDUCTIONS: dict[str, Any] = {"sum": "SUM", "mean": "SUM", "max": "MAX", "min": "MIN"}


def gather(data: Any, world: World) -> Any:
    """Each tensor of all ranks, joined along its first dimension; one without a dimension counts as of length 1. In a world of
    one it comes back as it is.

    Raises:
        DataError: some leaf is no tensor, or ranks have other shapes or dtypes; on every rank.
    """
    if world.size == 1:
        return data
    _only_tensors("gather", data)
    agree("gather", describe(data), world)
    return recursively_apply(lambda tensor: torch.cat(rows(tensor, world)), data)


def rows(tensor: Tensor, world: World) -> list[Tensor]:
    """The tensor of each rank, of one shape and dtype on all, with a dimension at least."""
    own = (tensor[None] if tensor.ndim == 0 else tensor).detach().contiguous()
    sent = own.view(torch.uint8) if own.dtype == torch.bool else own
    sent = sent.to(world.device)
    received = [torch.empty_like(sent) for _ in range(world.size)]
    dist.all_gather(received, sent)
    return [each.view(torch.bool) if own.dtype == torch.bool else each for each in received]


def gather_object(item: Any, world: World) -> Any:
    """The lists of all ranks, joined.

    Raises:
        DataError: it is no list: characters of a str, or keys of a dict, are not what is meant.
    """
    if not isinstance(item, list | tuple):
        why = "the objects of all ranks are joined as lists"
        raise DataError.of("gather_object", f"a {type(item).__name__}", why, "a list: gather_object([value])")
    return [each for own in objects(item, world) for each in own]


def objects(item: Any, world: World) -> list[Any]:
    """The object of each rank."""
    if world.size == 1:
        return [item]
    received: list[Any] = [None] * world.size
    dist.all_gather_object(received, item)
    return received


def reduce(data: Any, reduction: str, scale: float, world: World) -> Any:
    """Each tensor's sum, mean, max or min over the ranks, times `scale`; "none" leaves it as it is.

    Raises:
        DataError: there is no such reduction, some leaf is no tensor, or ranks have other shapes or dtypes.
    """
    if reduction == "none":
        return data
    if reduction not in REDUCTIONS:
        known = nearest(reduction, [*REDUCTIONS, "none"])
        raise DataError.of("reduction", reduction, "there is no such reduction", known)
    _only_tensors("reduce", data)
    agree("reduce", describe(data), world)

    def one(tensor: Tensor) -> Tensor:
        total = tensor.detach().to(world.device, copy=True)
        if world.size > 1:
            dist.all_reduce(total, getattr(dist.ReduceOp, REDUCTIONS[reduction]))
        total = total / world.size if reduction == "mean" else total
        return total if scale == 1.0 else total * scale

    return recursively_apply(one, data)


def broadcast(data: Any, source: int, world: World) -> Any:
    """Each tensor as rank `source` has it, into the tensor of the others.

    Raises:
        DataError: some leaf is no tensor, or ranks have other shapes or dtypes.
    """
    if world.size == 1:
        return data
    _only_tensors("broadcast", data)
    agree("broadcast", describe(data), world)

    def one(tensor: Tensor) -> Tensor:
        dist.broadcast(tensor.detach(), src=source)
        return tensor

    return recursively_apply(one, data)


def broadcast_objects(objects_: list[Any], source: int, world: World) -> list[Any]:
    """The objects as rank `source` has them, in the same list."""
    if world.size > 1:
        dist.broadcast_object_list(objects_, src=source)
    return objects_


def pad(data: Any, dim: int, value: float, first: bool, world: World) -> Any:
    """Each tensor as long in `dim` as the longest of all ranks, filled up with `value`; one without that dimension stays.

    Raises:
        DataError: some leaf is no tensor, or ranks have tensors of other kinds or other numbers of dimensions.
    """
    if world.size == 1:
        return data
    _only_tensors("pad_across_processes", data)
    agree("pad_across_processes", describe(data, shapes=False), world)
    tensors = [leaf for _, leaf in leaves(data)]
    lengths = torch.tensor([_length(t, dim) for t in tensors], device=comm.device_of(world))
    dist.all_reduce(lengths, dist.ReduceOp.MAX)
    longest = iter(lengths.tolist())
    return recursively_apply(lambda tensor: pad_to(tensor, next(longest), dim, value, first), data)


def _length(tensor: Tensor, dim: int) -> int:
    return tensor.shape[dim] if -tensor.ndim <= dim < tensor.ndim else 0


def pad_to(tensor: Tensor, length: int, dim: int = 0, value: float = 0, first: bool = False) -> Tensor:
    """The tensor, `length` long in `dim`."""
    lacking = length - _length(tensor, dim)
    if lacking <= 0 or not -tensor.ndim <= dim < tensor.ndim:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = lacking
    filling = tensor.new_full(shape, value)
    return torch.cat([filling, tensor] if first else [tensor, filling], dim=dim)


def _only_tensors(verb: str, data: Any) -> None:
    for way, leaf in leaves(data):
        if not isinstance(leaf, Tensor):
            where = f"a {type(leaf).__name__}" + (f" at {way}" if way else "")
            raise DataError.of(
                verb, where, "it takes tensors, in lists, tuples and mappings", "torch.tensor(value), or gather_object"
            )
