"""Where a loader's batches come from: an indexed dataset, by this rank's share of the order, or a stream, by its turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from itertools import islice
from typing import Any, Protocol, final

import torch
from attrs import evolve
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert
from torch.utils.data.dataloader import _DatasetKind

from restoke.data.dispatch import NOBODYS, Steps, dispatch
from restoke.data.feed import Aim, Feed, look_ahead
from restoke.data.options import Options, rank_aware_stream
from restoke.data.protocols import Counting, draws_unseen, nested
from restoke.data.randomness import isolated
from restoke.data.routes import Route, route
from restoke.data.shard import deal_stream, share
from restoke.data.stream_source import DealtStream, Given, dispatches
from restoke.errors import DataError
from restoke.world import World

Place = Callable[[Any], Any]


class Source(Protocol):
    """One data rank's batches of an epoch, again and again."""

    @property
    def torch(self) -> DataLoader[Any]:
        """What loads them."""

    @property
    def samplers(self) -> list[Any]:
        """All that makes their order."""

    @property
    def sampler(self) -> Any:
        """As the user sees it."""

    @property
    def batch_sampler(self) -> Any:
        """As the user sees it."""

    @property
    def counting(self) -> tuple[Counting, ...]:
        """Samplers that are told each batch."""

    @property
    def unit(self) -> str:
        """What positions count."""

    @property
    def stride(self) -> int:
        """How many units all ranks consume with one batch each."""

    @property
    def draws(self) -> bool:
        """Whether the order is drawn from the process's own generators."""

    def length(self) -> int | None:
        """This rank's batches of a whole epoch; None where unknown."""

    def left(self, start: int) -> int | None:
        """This rank's batches from a position on; None where only the end will tell."""

    def open(self, aim: Aim, place: Place) -> Iterator[Given]:
        """Placed batches, whether each is the last, and the count of its step where that is known."""


def make_source(options: Options, world: World, generator: torch.Generator) -> Source:
    """What gives the batches that the options ask for. Raises DataError: they contradict the world."""
    if not options.streams:
        way = route(options, world)
        if options.dealing is None or not dispatches(options, options.dealing, world):
            return MapSource(options, way, world, generator)
        return DispatchedSource(options, way, world, generator)
    if options.dealing is None:
        return StreamSource(options, world, generator)
    return DealtStream(options, options.dealing, world, generator)


@final
class MapSource:
    """Batches of an indexed dataset.

    Without workers a batch is loaded when it is asked for, not before, so that transforms and the model draw from the
    process's generators in the order of a hand-written loop: that a batch is the last is seen from its indices. Workers draw
    from their own, and the next batch is fetched, and on its way to the device, before this one is given out.
    """

    def __init__(self, options: Options, way: Route, world: World, generator: torch.Generator) -> None:
        self._route = way
        self.samplers = list(nested(way.indices))
        self.sampler, self.batch_sampler = way.sampler, way.batch_sampler
        self.unit, self.stride, self.counting = way.unit, way.stride, way.counting
        self.draws = draws_unseen(way.indices)
        sown = options.num_workers > 0 and options.worker_init_fn is None
        self._feed = Feed(way.indices, way.dealt, unseen=self.draws, sown=sown)
        single = options.batch_sampler is None and options.batch_size is None
        order: dict[str, Any] = {"sampler": self._feed, "batch_size": None} if single else {"batch_sampler": self._feed}
        keywords = options.for_torch(world) | order | {"generator": generator}
        self.torch: DataLoader[Any] = DataLoader(options.dataset, **keywords)

    def length(self) -> int | None:
        return self.left(0)

    def left(self, start: int) -> int | None:
        try:
            return self._route.left(start)
        except TypeError:
            return None

    def open(self, aim: Aim, place: Place) -> Iterator[Given]:
        self._feed.aim(aim, self._route.begin(aim.start))
        feed, tally, batches = self._feed, aim.tallies.popleft, iter(self.torch)
        if self.torch.num_workers > 0:
            return ((batch, last, tally()) for batch, last in look_ahead(map(place, batches)))
        return ((place(batch), feed.exhausted, tally()) for batch in batches)


@final
class Parts(Dataset[list[Any]]):
    """Loads the parts of all ranks at once, each collated as a batch of its own, or `single` entries."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, single: bool) -> None:
        kind: Any = _DatasetKind
        self._fetcher = kind.create_fetcher(kind.Map, dataset, not single, collate, False)

    def __getitem__(self, parts: list[Any]) -> list[Any]:
        return [self._fetcher.fetch(part) for part in parts]


@final
class DispatchedSource:
    """Batches of an indexed dataset that rank 0 alone loads."""

    def __init__(self, options: Options, way: Route, world: World, generator: torch.Generator) -> None:
        if way.share is None:
            why = "the sampler gives this rank's indices, and rank 0 does not know those of others"
            raise DataError.of("dispatch_batches", True, why, "dispatch_batches=False, or a sampler of all ranks' indices")
        single = options.batch_sampler is None and options.batch_size is None
        collate = options.collate_fn or (default_convert if single else default_collate)
        loaded = Parts(options.dataset, collate, single=single)
        whole = evolve(options, dataset=loaded, batch_sampler=None, batch_size=None, collate_fn=_as_it_is)
        self._world, self._inner = world, MapSource(whole, evolve(way, spread=True), world, generator)
        self.torch, self.samplers, self.draws = self._inner.torch, self._inner.samplers, self._inner.draws
        self.sampler, self.batch_sampler = way.sampler, way.batch_sampler
        self.unit, self.stride, self.counting = way.unit, way.stride, way.counting

    def length(self) -> int | None:
        return self._inner.length()

    def left(self, start: int) -> int | None:
        return self._inner.left(start)

    def open(self, aim: Aim, place: Place) -> Iterator[Given]:
        steps = self._steps(aim) if self._world.rank == 0 else None
        return ((place(batch), last, tally) for batch, last, tally, _ in dispatch(steps, self._world))

    def _steps(self, aim: Aim) -> Steps:
        return ((parts, tally, NOBODYS) for parts, _, tally in self._inner.open(aim, _as_it_is) if tally is not None)


def _as_it_is(batch: Any) -> Any:
    return batch


@final
class StreamSource:
    """Batches of an IterableDataset. One that does not know its rank is read by every rank as a whole, with the same random
    numbers, and of every `data_size` batches each rank keeps its own; an incomplete last round is dropped with `drop_last`,
    else filled up with its first batch. A position is reached again by reading up to it."""

    sampler = batch_sampler = None
    draws = False
    counting: tuple[Counting, ...] = ()

    def __init__(self, options: Options, world: World, generator: torch.Generator) -> None:
        aware = rank_aware_stream(options.dataset, world)
        self._ranks, self._rank = (1, 0) if aware else (world.data_size, world.data_rank)
        self.stride = self._ranks
        self.unit = f"own batches of {world.data_size} ranks" if aware else "stream batches"
        self.samplers = [options.dataset]
        self._drop_last = options.drop_last
        keywords = options.for_torch(world) | {"batch_size": options.batch_size, "drop_last": options.drop_last}
        self.torch: DataLoader[Any] = DataLoader(options.dataset, **keywords, generator=generator)

    def length(self) -> int | None:
        if not isinstance(self.torch.dataset, Sized):
            return None
        batches = share(len(self.torch.dataset), self.torch.batch_size or 1, drop_last=self._drop_last)
        return share(batches, self._ranks, drop_last=self._drop_last)

    def left(self, start: int) -> int | None:
        return None

    def open(self, aim: Aim, place: Place) -> Iterator[Given]:
        batches = isolated(lambda: iter(self.torch), aim.worker_seed) if self.torch.num_workers == 0 else iter(self.torch)
        own = deal_stream(islice(batches, aim.start, None), self._ranks, self._rank, drop_last=self._drop_last)
        return ((batch, last, None) for batch, last in look_ahead(map(place, own)))
