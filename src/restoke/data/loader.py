"""The loader: one data rank's batches on its device, watched, and resumable at every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, Protocol, final

import torch

from restoke.data.epochs import Epochs
from restoke.data.feed import Aim
from restoke.data.options import PINNED, Options, check, rank_aware_stream
from restoke.data.place import place
from restoke.data.position import Position, read_position
from restoke.data.protocols import Stateful
from restoke.data.randomness import Dice
from restoke.data.sources import MapSource, Source, StreamSource
from restoke.errors import DataError
from restoke.world import World


class Watcher(Protocol):
    """Who is told what a loader does."""

    def begin(self, loader: Any, /) -> None:
        """An iteration starts."""

    def batch(self, loader: Any, remaining: int | None, last: bool, /) -> None:
        """A batch is given out; `remaining` counts it and those after it, and is None where that is unknown."""

    def end(self, loader: Any, /) -> None:
        """The iteration is over, or was left."""


@final
class Loader:
    """Iterates like torch's DataLoader, which it holds; made by `make_loader`.

    Every iteration is an epoch of its own: samplers are told (`set_epoch`), and where the user tells them, the loader
    follows. `state_dict()` names the place after the batch given out last, also after the iteration was left there; after
    `load_state_dict` the next iteration continues behind it, in the same order, at another number of data ranks too (unless
    the sampler or stream is one that shards itself). The state is alike on all ranks if a seed is set.
    """

    def __init__(self, options: Options, world: World) -> None:
        check(options, world)
        self._options, self.world = options, world
        shared = options.streams and not rank_aware_stream(options.dataset, world)
        rank = None if shared else world.data_rank
        self._dice = Dice(options.seed, world.data_size, rank, options.generator)
        self._source: Source = (StreamSource if options.streams else MapSource)(options, world, self._dice.generator)
        self._dice.serve(self._source.samplers, self._source.draws)
        self._stateful = [item for item in self._source.samplers if isinstance(item, Stateful)]
        self._epochs = Epochs(self._source.samplers)
        self._position = Position(self._epochs.current)
        self._running = False
        self._left: dict[str, Any] | None = None  # the state where an iteration was left before its end
        self._watchers: list[Watcher] = []
        non_blocking = world.device.type in PINNED
        self._place: Callable[[Any], Any] = partial(place, device=world.device, non_blocking=non_blocking)

    def __len__(self) -> int:
        """This rank's batches in an epoch. Raises DataError, a TypeError, where that is unknown."""
        length = self._source.length()
        if length is None:
            why = "the number of its batches is unknown until they are over"
            raise DataError.of("len", type(self.dataset).__name__, why, "iterate, or give the dataset or the sampler a __len__")
        return length

    def __iter__(self) -> Iterator[Any]:
        position = self._begin()
        watchers, counting, complete = tuple(self._watchers), self._source.counting, False
        try:
            for watcher in watchers:
                watcher.begin(self)
            left = self._source.left(position.start)
            for batch, last in self._source.open(self._aim(position), self._place):
                position.yielded += 1
                remaining, left = _count_down(left, last)
                for sampler in counting:
                    sampler.advance(1)
                for watcher in watchers:
                    watcher.batch(self, remaining, last)
                yield batch
            complete = True
        finally:
            self._end(position, complete)
            for watcher in watchers:
                watcher.end(self)

    def watch(self, watcher: Watcher) -> None:
        """Tell this one of every batch, too; twice is once."""
        if not any(watcher is other for other in self._watchers):
            self._watchers.append(watcher)

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration, else of the next one."""
        if not self._running:
            self._epochs.follow()
        return self._epochs.current

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self._epochs.tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch that was given out, as plain values and tensors."""
        if self._left is not None:
            return self._left
        position = self._position if self._running else self._settle()
        if position.seeds is None:
            self._snapshot(position)
        counting = [item.state_dict() if item in self._source.counting else None for item in self._stateful]
        states = [held if now is None else now for held, now in zip(position.samplers, counting, strict=True)]
        return position.saved(self._source.unit, self._source.stride, self._samples) | {"samplers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where the state was taken.

        Raises:
            DataError: the state is damaged, or of a loader that takes its data in another way.
        """
        position = read_position(state, self._source.unit, self._samples, len(self._dice.given), len(self._stateful))
        for sampler, held in zip(self._stateful, position.samplers, strict=True):
            sampler.load_state_dict(held)
        for generator, held in zip(self._dice.given, position.generators, strict=True):
            generator.set_state(held)
        self._epochs.tell(position.epoch)
        self._position, self._left = position, None

    def _begin(self) -> Position:
        position = Position(self._position.epoch + 1) if self._running else self._settle()
        self._epochs.tell(position.epoch)
        self._snapshot(position)
        position.seeds = position.seeds or self._dice.roll(position.epoch)
        self._dice.apply(position.seeds)
        self._position, self._running, self._left = position, True, None
        return position

    def _settle(self) -> Position:
        """Where the next iteration begins, in the epoch that the user may have chosen meanwhile."""
        self._epochs.follow()
        epoch, position = self._epochs.current, self._position
        if epoch < position.epoch and position.number:
            why = f"the loaded state stands at batch {position.number} of epoch {position.epoch}"
            raise DataError.of("epoch", epoch, why, f"begin at loader.epoch, which is {position.epoch}, or load no state")
        if epoch != position.epoch:
            self._position = Position(epoch)
        return self._position

    def _snapshot(self, position: Position) -> None:
        position.generators = [generator.get_state() for generator in self._dice.given]
        position.samplers = [sampler.state_dict() for sampler in self._stateful]

    def _aim(self, position: Position) -> Aim:
        assert position.seeds is not None
        return Aim(position.start, position.number, position.seeds, self._dice.worker_seed(position.seeds))

    def _end(self, position: Position, complete: bool) -> None:
        if self._position is not position:
            return  # another iteration began meanwhile
        self._dice.release()
        self._left = None if complete else self.state_dict()
        self._epochs.follow()
        chosen = self._epochs.current
        self._epochs.tell(position.epoch + 1 if chosen == position.epoch else chosen)
        self._position, self._running = Position(self._epochs.current), False

    @property
    def _samples(self) -> int | None:
        return len(self.dataset) if isinstance(self.dataset, Sized) else None

    @property
    def dataset(self) -> Any:
        return self._options.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of this rank; None where a batch sampler makes the batches."""
        return self._options.batch_size if self._options.batch_sampler is None else None

    @property
    def sampler(self) -> Any:
        """The user's own where it gives this rank's indices, else what deals it to the ranks; None for a stream."""
        return self._source.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives this rank's indices batch by batch; None for a stream, and without batches."""
        return self._source.batch_sampler

    @property
    def drop_last(self) -> bool:
        return self._options.drop_last

    @property
    def generator(self) -> torch.Generator | None:
        return self._options.generator

    @property
    def num_workers(self) -> int:
        return self._source.torch.num_workers

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        collate: Callable[[Any], Any] = self._source.torch.collate_fn
        return collate

    @property
    def pin_memory(self) -> bool:
        return self._source.torch.pin_memory

    @property
    def timeout(self) -> float:
        return self._source.torch.timeout

    @property
    def worker_init_fn(self) -> Callable[[int], None] | None:
        return self._options.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        return self._source.torch.multiprocessing_context

    @property
    def prefetch_factor(self) -> int | None:
        return self._source.torch.prefetch_factor

    @property
    def persistent_workers(self) -> bool:
        return self._options.persistent_workers


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
) -> Loader:
    """A loader of `world`'s share of the dataset. The parameters are those of torch's DataLoader.

    `batch_size` counts the samples of one rank, and is not used where a `batch_sampler` is given. Any sampler is dealt out to
    the data ranks; one with `num_replicas` and `rank`, or a stream with these or `rank_aware = True`, is taken as it is. All
    ranks get as many batches: some entries come twice, or with `drop_last` not at all. Memory is pinned on CUDA and XPU,
    unless `pin_memory` is False. `seed` makes order and workers depend on it and the epoch alone; workers with a
    `worker_init_fn` of the user's keep the generators as that leaves them.

    Raises:
        DataError: the parameters contradict each other, the world or the dataset; every reason is named.
    """
    options = Options(
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers, seed,
    )  # fmt: skip
    return Loader(options, world)


def _count_down(left: int | None, last: bool) -> tuple[int | None, int | None]:
    """What is left with this batch and after it. A length that was wrong is unknown from where it shows."""
    if last:
        return 1, None
    return (None, None) if left is None or left < 2 else (left, left - 1)
