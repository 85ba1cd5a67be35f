"""Deals one global order of samples, or of batches, out to the data ranks: to each equally many, each entry to one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import chain, cycle, islice
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SequentialSampler

from restoke.data.protocols import nested

T = TypeVar("T")
CHUNK = 1 << 13  # indices turned into Python ints at a time


def deal(items: Iterable[T], replicas: int, rank: int, *, drop_last: bool, start: int = 0) -> Iterator[T]:
    """Every `replicas`-th item from `start` + `rank` on. An incomplete last round is left out, or filled up from the start of
    the order. The items may be endless, and are held one round at a time."""
    source = iter(items)
    head = tuple(islice(source, replicas))
    rest = islice(chain(head, source), start, None)
    while dealt := tuple(islice(rest, replicas)):
        if len(dealt) == replicas:
            yield dealt[rank]
        elif not drop_last:
            yield next(islice(chain(dealt, cycle(head)), rank, None))


def deal_at_once(order: range | Tensor, replicas: int, rank: int, *, drop_last: bool, start: int = 0) -> Iterator[int]:
    """As `deal`, by slicing an order that is there as a whole: (samples,)."""
    rest = order[start:]
    whole = len(rest) - len(rest) % replicas
    own = rest[rank:whole:replicas]
    if isinstance(own, Tensor):
        for chunk in own.split(CHUNK):  # type: ignore[no-untyped-call]
            yield from chunk.tolist()
    else:
        yield from own
    if whole < len(rest) and not drop_last:
        place = whole + rank
        yield int(rest[place] if place < len(rest) else order[(place - len(rest)) % len(order)])


def deal_stream(batches: Iterable[T], replicas: int, rank: int, *, drop_last: bool, start: int = 0) -> Iterator[T]:
    """As `deal`, for batches that are too big to keep: an incomplete last round is filled up with the first of its own."""
    rest = islice(batches, start, None)
    for first in rest:
        own, count = first, 1
        for batch in islice(rest, replicas - 1):
            own, count = (batch if count == rank else own), count + 1
        if count == replicas or not drop_last:
            yield own


def share(total: int, replicas: int, *, drop_last: bool, start: int = 0) -> int:
    """How many entries each rank gets of those from `start` on."""
    left = max(total - start, 0)
    return left // replicas if drop_last else -(-left // replicas)


def at_once(sampler: object) -> range | Tensor | None:
    """The whole order of one of torch's own samplers; None where only iterating can tell."""
    if type(sampler) is SequentialSampler:
        return range(len(sampler))
    if type(sampler) is DistributedSampler:
        length = len(sampler.dataset)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(sampler.seed + sampler.epoch)
        return torch.randperm(length, generator=generator) if sampler.shuffle else range(length)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is not None:
        length = len(sampler.data_source)
        return torch.randperm(length, generator=sampler.generator) if len(sampler) == length else None
    return None


@final
class ShardedSampler(Sampler[Any]):
    """One data rank's share of what any sampler yields, by strides: the order of torch's DistributedSampler.

    A DistributedSampler in it is read as the global order that it would shard itself. All ranks must iterate over the same
    order: `restoke.data.Loader` sees to that, for random samplers too.
    """

    def __init__(self, sampler: Iterable[Any], *, num_replicas: int, rank: int, drop_last: bool = False) -> None:
        super().__init__()
        self.sampler, self.num_replicas, self.rank, self.drop_last = sampler, num_replicas, rank, drop_last
        self.epoch = 0
        self._start = 0

    def __iter__(self) -> Iterator[Any]:
        start, self._start = self._start, 0
        if self.num_replicas == 1 and type(self.sampler) is not DistributedSampler:
            return islice(self.sampler, start, None)
        order = at_once(self.sampler)
        if order is None:
            return deal(self.sampler, self.num_replicas, self.rank, drop_last=self.drop_last, start=start)
        return deal_at_once(order, self.num_replicas, self.rank, drop_last=self.drop_last, start=start)

    def __len__(self) -> int:
        return self.left(0)

    def left(self, start: int) -> int:
        """This rank's entries from place `start` of the global order on. Raises TypeError if the sampler has no length."""
        return share(length_of(self._order), self.num_replicas, drop_last=self.drop_last, start=start)

    def begin_at(self, start: int) -> None:
        """The next iteration leaves out the first `start` entries of the global order."""
        self._start = start

    def due(self) -> int | None:
        """The entries of the global order that the next iteration deals out; None where unknown."""
        return max(len(self._order) - self._start, 0) if isinstance(self._order, Sized) else None

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers inside."""
        self.epoch = epoch
        tell_epoch(self.sampler, epoch)

    @property
    def _order(self) -> Any:
        return self.sampler.dataset if type(self.sampler) is DistributedSampler else self.sampler


@final
class ShardedBatchSampler(Sampler[Any]):
    """One data rank's whole batches of any batch sampler, dealt round robin: as many to each rank. A batch sampler that drops
    its last batch (`drop_last`) loses an incomplete last round; else the round is filled up with the first batches."""

    def __init__(self, batch_sampler: Iterable[Any], *, num_replicas: int, rank: int) -> None:
        super().__init__()
        self.batch_sampler, self.num_replicas, self.rank = batch_sampler, num_replicas, rank
        self.drop_last = getattr(batch_sampler, "drop_last", False) is True
        self.epoch = 0
        self._start = 0

    def __iter__(self) -> Iterator[Any]:
        start, self._start = self._start, 0
        return deal(self.batch_sampler, self.num_replicas, self.rank, drop_last=self.drop_last, start=start)

    def __len__(self) -> int:
        return self.left(0)

    def left(self, start: int) -> int:
        """This rank's batches from place `start` of the global order on. Raises TypeError if their number is unknown."""
        return share(length_of(self.batch_sampler), self.num_replicas, drop_last=self.drop_last, start=start)

    def begin_at(self, start: int) -> None:
        """The next iteration leaves out the first `start` batches of the global order."""
        self._start = start

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers inside."""
        self.epoch = epoch
        tell_epoch(self.batch_sampler, epoch)


def length_of(sampler: object) -> int:
    """How many entries it yields. Raises TypeError where that is unknown."""
    if not isinstance(sampler, Sized):
        raise TypeError(f"{type(sampler).__name__} has no length")
    return len(sampler)


def tell_epoch(sampler: object, epoch: int) -> None:
    """Tell it and the samplers inside it."""
    for item in nested(sampler):
        if callable(tell := getattr(item, "set_epoch", None)):
            tell(epoch)
