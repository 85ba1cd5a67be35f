"""What a loader is asked for, and why some of it cannot be."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch.utils.data import IterableDataset, IterDataPipe

from restoke.data.agreement import Agreement
from restoke.data.dealing import Dealing
from restoke.data.place import place
from restoke.data.protocols import is_rank_aware
from restoke.data.randomness import Dice
from restoke.errors import DataError, Problem
from restoke.world import World

PINNED = ("cuda", "xpu")


@frozen(eq=False)
class Options:
    """The parameters of torch's DataLoader under the same names, the seed, and the rules by which whole batches are dealt."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: int
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool | None
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    seed: int | None
    dealing: Dealing | None = None

    @property
    def streams(self) -> bool:
        """Whether the dataset is iterated over, not indexed."""
        return isinstance(self.dataset, IterableDataset)

    def for_torch(self, world: World) -> dict[str, Any]:
        """The keywords that go to torch's DataLoader as they are. Memory is pinned where the device reads from it."""
        pin = world.device.type in PINNED and self.pin_memory is not False
        names = ("num_workers", "collate_fn", "timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers")
        return {name: getattr(self, name) for name in (*names, "prefetch_factor")} | {"pin_memory": pin}

    def place(self, world: World) -> Callable[[Any], Any]:
        """What moves a batch to the rank's device."""
        dealing = self.dealing or Dealing()
        if not dealing.device_placement:
            return lambda batch: batch
        pinned = world.device.type in PINNED
        non_blocking = pinned if dealing.non_blocking is None else dealing.non_blocking
        return partial(place, device=world.device, non_blocking=non_blocking)

    def dice(self, world: World) -> Dice:
        """What chooses the random numbers of an epoch."""
        if self.dealing is None:
            shared = self.streams and not rank_aware_stream(self.dataset, world)
            return Dice(self.seed, world.data_size, None if shared else world.data_rank, self.generator)
        agree = Agreement(world, self.dealing.rng_types, always=self.streams) if world.size > 1 else None
        return Dice(self.seed, 1, world.data_rank, self.generator, agree)


def check(options: Options, world: World) -> None:
    """Raises DataError, with every reason, where the options cannot be obeyed."""
    problems = [*_sizes(options), *_order(options, world), *_workers(options)]
    if problems:
        raise DataError(*problems)


def rank_aware_stream(dataset: object, world: World) -> bool:
    """Whether a stream gives each data rank its own share by itself. Raises DataError if it is the share of another rank."""
    return getattr(dataset, "rank_aware", False) is True or is_rank_aware("dataset", dataset, world)


def _sizes(options: Options) -> Iterator[Problem]:
    if options.batch_sampler is None and options.batch_size is not None and not _counts(options.batch_size, 1):
        yield Problem("batch_size", options.batch_size, "a batch holds at least one sample", "a whole number from 1 on")
    if options.batch_size is None and options.drop_last:
        yield Problem("drop_last", True, "there are no batches without batch_size", "drop_last=False, or a batch_size")
    if not _counts(options.num_workers, 0):
        yield Problem("num_workers", options.num_workers, "it is no number of processes", "a whole number from 0 on")
    if options.seed is not None and not _counts(options.seed, 0):
        yield Problem("seed", options.seed, "it is no seed", "a whole number from 0 on, or None")


def _order(options: Options, world: World) -> Iterator[Problem]:
    kind = type(options.dataset).__name__
    ordering = {"shuffle": options.shuffle or None, "sampler": options.sampler, "batch_sampler": options.batch_sampler}
    given = [name for name, value in ordering.items() if value is not None]
    if options.streams:
        for name in given:
            yield Problem(name, ordering[name], f"{kind} is an IterableDataset: it has its own order", f"leave {name} out")
        if isinstance(options.dataset, IterDataPipe) and world.data_size > 1 and not rank_aware_stream(options.dataset, world):
            yield Problem("dataset", kind, "torch may shard a data pipe by itself", "set rank_aware = True on it, or a dataset")
        return
    if not given and not isinstance(options.dataset, Sized):
        yield Problem("dataset", kind, "it has neither __len__ nor is it an IterableDataset", "one of them, or a sampler")
    if len(given) > 1:
        yield Problem(given[0], ordering[given[0]], f"{given[1]} makes the order too", "one of the two")
    if options.batch_sampler is not None and options.drop_last:
        yield Problem("drop_last", True, "the batch_sampler makes the batches", "drop_last of the batch_sampler")


def _workers(options: Options) -> Iterator[Problem]:
    if options.num_workers != 0:
        return
    unmet = {
        "prefetch_factor": options.prefetch_factor,
        "persistent_workers": options.persistent_workers or None,
        "timeout": options.timeout or None,
        "multiprocessing_context": options.multiprocessing_context,
    }
    for name, value in unmet.items():
        if value is not None:
            yield Problem(name, value, "there are no workers: num_workers=0", f"num_workers=1 or more, or leave {name} out")


def _counts(number: object, low: int) -> bool:
    try:
        return not isinstance(number, bool) and operator.index(number) >= low  # type: ignore[arg-type]
    except TypeError:
        return False
