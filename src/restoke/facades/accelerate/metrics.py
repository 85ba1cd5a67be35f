"""What an evaluation gathers: every sample of the dataset once, without the repeated ones that even batches brought."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from restoke import comm
from restoke.data import BatchShare, Loader
from restoke.errors import DataError
from restoke.facades.accelerate.agree import agree, describe
from restoke.facades.accelerate.collectives import gather, gather_object, objects, pad_to, rows
from restoke.facades.accelerate.trees import leaves, recursively_apply
from restoke.world import World


def gather_for_metrics(data: Any, loader: Loader | None, as_objects: bool, world: World) -> Any:
    """What all ranks computed of the batch that `loader` gave out last, one entry for each real sample.

    Raises:
        DataError: it has not one entry per sample of this rank's batch, or ranks have other shapes or dtypes.
    """
    as_objects = as_objects or not all(isinstance(leaf, Tensor) for _, leaf in leaves(data))
    if loader is None or loader.real is None or loader.sizes is None:
        gathered = gather_object(data, world) if as_objects else gather(data, world)
        return _cut(gathered, loader)
    _refuse_uneven(loader, world)
    real, sizes = _by_rank(loader.real, world), _by_rank(loader.sizes, world)
    if as_objects:
        return _gathered_objects(data, real, sizes, world)
    for way, leaf in leaves(data):
        _check_rows(way, leaf, sizes[world.rank], loader)
    if world.size == 1:
        return recursively_apply(lambda tensor: tensor[: real[0]], data)
    agree("gather_for_metrics", describe(recursively_apply(lambda tensor: tensor[:0], data)), world)
    most = max(*sizes, *(leaf.shape[0] for _, leaf in leaves(data)), loader.batch_size or 0)

    def one(tensor: Tensor) -> Tensor:
        received = rows(pad_to(tensor, most), world)
        return torch.cat([each[:count] for each, count in zip(received, real, strict=True)])

    return recursively_apply(one, data)


def _refuse_uneven(loader: Loader, world: World) -> None:
    """Raises DataError, on every rank and in the first step, where some rank's loop will be over before another's."""
    share = loader.batch_sampler
    if world.size > 1 and loader.sizes is not None and 0 in loader.sizes:
        why = f"data rank {loader.sizes.index(0)} has no batch in this step, so its loop is over"
        raise DataError.of("even_batches", False, why, "even_batches=True: what it repeats is dropped here")
    if world.size == 1 or not isinstance(share, BatchShare) or share.even_batches:
        return
    steps = comm.gather_json(len(loader), world)
    if len(set(steps)) > 1:
        short = steps.index(min(steps))
        why = f"rank {short} has {steps[short]} batches, rank {steps.index(max(steps))} {max(steps)}, and would wait for ever"
        instead = "even_batches=True: what it repeats is dropped here"
        raise DataError.of("even_batches", False, why, instead)


def _by_rank(counts: tuple[int, ...], world: World) -> list[int]:
    """Of ranks that share their data, the first counts."""
    return [counts[rank // world.tensor] if rank % world.tensor == 0 else 0 for rank in range(world.size)]


def _check_rows(way: str, leaf: Tensor, size: int, loader: Loader) -> None:
    """One row per sample; or as many as a full batch has, where the batch is a short one (`loss.repeat(batch_size)`)."""
    if leaf.ndim and leaf.shape[0] in (size, loader.batch_size):
        return
    got = f"a tensor of shape {list(leaf.shape)}" + (f" at {way}" if way else "")
    why = f"the batch has {size} samples, and duplicates could not be told from it: it is a mean, or something else per batch"
    instead = "one value per sample (a loss with reduction='none'), or accelerator.reduce(value, 'mean') or gather(value)"
    raise DataError.of("gather_for_metrics", got, why, instead)


def _gathered_objects(data: Any, real: list[int], sizes: list[int], world: World) -> list[Any]:
    if not isinstance(data, list | tuple):
        why = "objects are gathered as a list with one for each sample of the batch"
        raise DataError.of("gather_for_metrics", f"a {type(data).__name__}", why, "a list, or accelerator.reduce of tensors")
    received = objects(list(data), world)
    for rank, (own, size) in enumerate(zip(received, sizes, strict=True)):
        if len(own) != size and rank % world.tensor == 0:
            why = f"the batch of rank {rank} has {size} samples"
            instead = "one object for each sample, or gather_object for what is no sample's"
            raise DataError.of("gather_for_metrics", f"{len(own)} objects", why, instead)
    return [item for own, count in zip(received, real, strict=True) for item in own[:count]]


def _cut(gathered: Any, loader: Loader | None) -> Any:
    """Without counts for each rank, what lies behind the remainder repeats."""
    if loader is None or not loader.end_of_dataloader or loader.remainder <= 0:
        return gathered
    if isinstance(gathered, list):
        return gathered[: loader.remainder]
    return recursively_apply(lambda tensor: tensor[: loader.remainder], gathered)
