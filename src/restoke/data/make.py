"""Makes loaders: from a dataset and the parameters of torch's DataLoader, or from a DataLoader of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from restoke.data.dealing import Dealing
from restoke.data.group_sampler import among_groups
from restoke.data.loader import Loader
from restoke.data.options import Options
from restoke.errors import DataError
from restoke.world import World


def make_loader(
    dataset: Any,
    *,
    world: World,
    batch_size: int | None = 1,
    shuffle: bool | None = False,
    sampler: Iterable[Any] | None = None,
    batch_sampler: Iterable[Any] | None = None,
    num_workers: int = 0,
    collate_fn: Callable[[Any], Any] | None = None,
    pin_memory: bool | None = None,
    drop_last: bool = False,
    timeout: float = 0,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: Any = None,
    generator: torch.Generator | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    seed: int | None = None,
    dealing: Dealing | None = None,
) -> Loader:
    """A loader of `world`'s share of the dataset. The parameters are those of torch's DataLoader.

    `batch_size` counts the samples of one rank, and is not used where a `batch_sampler` is given. Any sampler is dealt out to
    the data ranks; one with `num_replicas` and `rank`, or a stream with these or `rank_aware = True`, is taken as it is. All
    ranks get as many batches: some entries come twice, or with `drop_last` not at all. Memory is pinned on CUDA and XPU,
    unless `pin_memory` is False. `seed` makes order and workers depend on it and the epoch alone; workers with a
    `worker_init_fn` of the user's keep the generators as that leaves them. With `dealing`, whole batches are dealt out by its
    rules; an order that has no seed is then drawn as by torch's DataLoader on rank 0, and the same on all.

    Raises:
        DataError: the parameters contradict each other, the world or the dataset; every reason is named.
    """
    options = Options(
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers, seed, dealing,
    )  # fmt: skip
    return Loader(options, among_groups(world, sampler, batch_sampler))


def take_loader(dataloader: DataLoader[Any] | Loader, *, world: World, dealing: Dealing | None = None) -> Loader:
    """A loader of `world`'s share of what a DataLoader gives: its dataset, sampler, workers and collation, dealt by the rules.

    A Loader is returned as it is. No other rank is waited for; that is when the iteration begins.

    Raises:
        DataError: the rules, the DataLoader and the world contradict each other; every reason is named.
    """
    if isinstance(dataloader, Loader):
        return dataloader
    if type(dataloader).__iter__ is not DataLoader.__iter__:
        why = "it iterates in a way of its own, of which only it knows the order"
        raise DataError.of("dataloader", type(dataloader).__name__, why, "torch's DataLoader of the same dataset")
    if not getattr(dataloader, "in_order", True):
        why = "batches that come out of order have no place to continue from"
        raise DataError.of("in_order", False, why, "in_order=True")
    if device := getattr(dataloader, "pin_memory_device", ""):
        why = f"memory is pinned for the rank's own device, {world.device.type}"
        raise DataError.of("pin_memory_device", device, why, "leave it out")
    return make_loader(
        dataloader.dataset,
        world=world,
        **_order(dataloader),
        num_workers=dataloader.num_workers,
        collate_fn=dataloader.collate_fn,
        pin_memory=dataloader.pin_memory or None,
        timeout=dataloader.timeout,
        worker_init_fn=dataloader.worker_init_fn,
        multiprocessing_context=dataloader.multiprocessing_context if dataloader.num_workers else None,
        generator=dataloader.generator,
        prefetch_factor=dataloader.prefetch_factor,
        persistent_workers=dataloader.persistent_workers,
        dealing=Dealing() if dealing is None else dealing,
    )


def _order(dataloader: DataLoader[Any]) -> dict[str, Any]:
    """What makes the batches."""
    if isinstance(dataloader.dataset, IterableDataset):
        return {"batch_size": dataloader.batch_size, "drop_last": dataloader.drop_last}
    if dataloader.batch_size is not None and type(dataloader.batch_sampler) is BatchSampler:
        names = ("batch_size", "sampler", "drop_last")
        return {name: getattr(dataloader, name) for name in names}
    if dataloader.batch_sampler is not None:
        return {"batch_sampler": dataloader.batch_sampler}
    return {"batch_size": None, "sampler": dataloader.sampler}
