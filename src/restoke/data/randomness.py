"""The random numbers of one epoch: its order alike on all data ranks, its transforms different on each, both repeatable."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, final

import numpy as np
import torch
import xxhash
from attrs import frozen

from restoke.data.protocols import Generated, Seeded, takes_generator

T = TypeVar("T")


def mix(*parts: int) -> int:
    """A seed of 63 bits that depends on each of the parts."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode()) >> 1


def draw(generator: torch.Generator | None = None) -> int:
    """A number from torch's generator, drawn as its DataLoader draws seeds."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


@frozen
class Seeds:
    """What an epoch's order, and its workers, are seeded with. The workers' is not yet mixed with the data rank."""

    order: int
    workers: int


Agree = Callable[[Seeds, Sequence[torch.Generator], Sequence[Seeded], bool], Seeds]


@final
class Dice:
    """Chooses the seeds of each epoch, and hands them to the generators of the samplers and of torch's DataLoader.

    With a seed, or with several data ranks, the order depends on the seed (0 where there is none) and the epoch alone. Else
    it is drawn from torch's generator exactly as bare torch would. A generator that the user gave is left alone, except in a
    sampler whose order must be alike on several data ranks. `rank` is None where all ranks load the same. `agree` makes what
    one process chooses that of all, so that `ranks` is 1.
    """

    def __init__(
        self, seed: int | None, ranks: int, rank: int | None, given: torch.Generator | None, agree: Agree | None = None
    ) -> None:
        self._seed, self._many, self._rank, self._given, self._agree = seed, ranks > 1, rank, given, agree
        self.generator = torch.Generator() if given is None else given  # torch's DataLoader draws from it
        self.given = [] if given is None else [given]  # the user's own, which go on from epoch to epoch
        self._drawing: list[Generated] = []
        self._seeded: list[Seeded] = []
        self._draws = False
        self._found: list[torch.Generator | None] = []

    def serve(self, samplers: list[Any], draws: bool) -> None:
        """Take on these samplers; `draws` says that the order's seed is needed anyway."""
        drawing = [item for item in samplers if takes_generator(item)]
        self._seeded = [item for item in samplers if isinstance(item, Seeded)]
        self._drawing = [item for item in drawing if self._many or item.generator is None]
        own = [item.generator for item in drawing if item.generator is not None] if not self._many else []
        self.given += [item for item in {id(item): item for item in own}.values() if item is not self._given]
        self._draws = draws or bool(self._drawing)

    def roll(self, epoch: int) -> Seeds:
        """The seeds of a new epoch. All ranks call this where they agree."""
        seeds = self._roll(epoch)
        return seeds if self._agree is None else self._agree(seeds, self.given, self._seeded, self._draws)

    def _roll(self, epoch: int) -> Seeds:
        workers = self._roll_workers(epoch)
        if self._seed is not None or self._many:
            return Seeds((self._seed or 0) + epoch, workers)
        return Seeds(draw() if self._draws else 0, workers)

    def _roll_workers(self, epoch: int) -> int:
        if self._given is not None:
            return draw(self._given.clone_state())
        if self._seed is not None or (self._many and self._rank is None):
            return mix(self._seed or 0, epoch)
        return draw()

    def apply(self, seeds: Seeds) -> None:
        """Seed what draws from a generator of ours, until `release`."""
        if self._given is None:
            self.generator.manual_seed(self.worker_seed(seeds))
        self._found = [sampler.generator for sampler in self._drawing]
        for sampler in self._drawing:
            sampler.generator = torch.Generator().manual_seed(seeds.order)

    def release(self) -> None:
        """Leave the samplers as they were found."""
        for sampler, found in zip(self._drawing, self._found, strict=False):
            sampler.generator = found

    def worker_seed(self, seeds: Seeds) -> int:
        """This data rank's seed for what happens to its samples."""
        return seeds.workers if self._rank is None else mix(seeds.workers, self._rank)


@final
class Streams:
    """Python's, numpy's and torch's CPU generators as after `seed`: a `with` block draws from these, not the process's own."""

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.MT19937(seed)
        self._torch = torch.Generator().manual_seed(seed).get_state()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._swap()

    def _swap(self) -> None:
        outer = random.getstate(), np.random.get_bit_generator(), torch.get_rng_state()  # type: ignore[attr-defined]
        random.setstate(self._python)
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        torch.set_rng_state(self._torch)
        self._python, self._numpy, self._torch = outer


def isolated(begin: Callable[[], Iterator[T]], seed: int) -> Iterator[T]:
    """What `begin` yields, made with generators of their own."""
    streams = Streams(seed)
    with streams:
        source = begin()
    while True:
        with streams:
            try:
                item = next(source)
            except StopIteration:
                return
        yield item


@final
class Sown:
    """An index for a worker. That it arrives there seeds the worker: what a transform draws then depends on the batch alone,
    neither on the number of workers nor on what this one has loaded before."""

    __slots__ = ("_index", "_seed")

    def __init__(self, index: Any, seed: int) -> None:
        self._index, self._seed = index, seed

    def __reduce__(self) -> tuple[Any, ...]:
        return sow, (self._index, self._seed)


def sow(index: Any, seed: int) -> Any:
    """Seed the generators of this process, and hand on the index."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    return index
