"""What a user's sampler or dataset may offer beyond what torch asks of it, and what a loader makes of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from restoke.errors import DataError
from restoke.world import World

STEADY = (SequentialSampler, BatchSampler, DistributedSampler, list, tuple, range, np.ndarray, Tensor)


@runtime_checkable
class Epochal(Protocol):
    """Its order depends on the epoch it is told."""

    def set_epoch(self, epoch: int, /) -> None: ...


@runtime_checkable
class Generated(Protocol):
    """It draws from a generator that can be given to it."""

    generator: torch.Generator | None


@runtime_checkable
class Seeded(Protocol):
    """Its order depends on this seed, and the epoch."""

    initial_seed: int


@runtime_checkable
class RankAware(Protocol):
    """It gives one data rank's share by itself."""

    num_replicas: int
    rank: int


@runtime_checkable
class OfWorld(Protocol):
    """It knows its rank, as streams that split themselves by node do."""

    rank: int
    world_size: int


@runtime_checkable
class Stateful(Protocol):
    """Its state can be saved; a loader takes it at the start of an epoch."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> None: ...


@runtime_checkable
class Counting(Stateful, Protocol):
    """It keeps its own position, which whoever consumes its batches counts."""

    def advance(self, batches: int, /) -> None: ...


class Watcher(Protocol):
    """Who is told what a loader does."""

    def begin(self, loader: Any, /) -> None:
        """An iteration starts."""

    def batch(self, loader: Any, remaining: int | None, last: bool, /) -> None:
        """A batch is given out; `remaining` counts it and those after it, and is None where that is unknown."""

    def end(self, loader: Any, /) -> None:
        """The iteration is over, or was left."""


def nested(sampler: object) -> Iterator[Any]:
    """A sampler and those that it draws from, outermost first."""
    seen: list[object] = []
    while sampler is not None and not any(sampler is other for other in seen):
        seen.append(sampler)
        yield sampler
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner


def is_rank_aware(axis: str, thing: object, world: World) -> bool:
    """Whether it, or a sampler inside it, gives this data rank's share by itself.

    Raises:
        DataError: it gives the share of another rank, or of another number of ranks.
    """
    found = [(item, share) for item in nested(thing) if (share := _share_of(item)) is not None]
    for item, (rank, ranks) in found:
        if (ranks, rank) != (world.data_size, world.data_rank):
            got = f"{type(item).__name__}(num_replicas={ranks}, rank={rank})"
            why = f"this is data rank {world.data_rank} of {world.data_size}"
            raise DataError.of(axis, got, why, f"num_replicas={world.data_size}, rank={world.data_rank}, or leave both out")
    return bool(found)


def _share_of(item: Any) -> tuple[int, int] | None:
    """Its rank and the number of ranks, as samplers name them, as streams do, or as `datasets.distributed` keeps them."""
    if isinstance(item, RankAware):
        return item.rank, item.num_replicas
    for holder in (item, getattr(item, "_distributed", None)):
        if isinstance(holder, OfWorld):
            found: tuple[Any, Any] = holder.rank, holder.world_size
            if all(isinstance(number, int) for number in found):
                return found
    return None


def takes_generator(sampler: object) -> TypeGuard[Generated]:
    """Whether torch's generators can be given to it; `generator` may as well be one of numpy's."""
    return isinstance(sampler, Generated) and (sampler.generator is None or isinstance(sampler.generator, torch.Generator))


def draws_unseen(sampler: object) -> bool:
    """Whether it may draw random numbers from generators that cannot be given to it: the process's own."""
    return any(
        not takes_generator(item) and not isinstance(item, RankAware) and type(item) not in STEADY for item in nested(sampler)
    )
