"""The loader: one data rank's batches on its device, watched, and resumable at every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from restoke.data.attributes import Attributes
from restoke.data.epochs import Epochs
from restoke.data.feed import Aim
from restoke.data.options import Options, check
from restoke.data.position import Position, read_position
from restoke.data.protocols import Stateful, Watcher
from restoke.data.sources import make_source
from restoke.errors import DataError
from restoke.world import World


@final
class Loader(Attributes):
    """Iterates like torch's DataLoader, which it holds; made by `make_loader` or `take_loader`.

    Every iteration is an epoch of its own: samplers are told (`set_epoch`), and where the user tells them, the loader
    follows. `state_dict()` names the place after the batch given out last, also after the iteration was left there; after
    `load_state_dict` the next iteration continues behind it, in the same order, at another number of data ranks too (unless
    the sampler or stream is one that shards itself). The state is alike on all ranks if a seed is set.
    """

    def __init__(self, options: Options, world: World) -> None:
        check(options, world)
        self._options, self.world = options, world
        self._dice = options.dice(world)
        self._source = make_source(options, world, self._dice.generator)
        self._dice.serve(self._source.samplers, self._source.draws)
        self._stateful = [item for item in self._source.samplers if isinstance(item, Stateful)]
        self._epochs = Epochs(self._source.samplers)
        self._position = Position(self._epochs.current)
        self._running = False
        self._left: dict[str, Any] | None = None  # the state where an iteration was left before its end
        self._watchers: list[Watcher] = []
        self._tally, self._last = None, False
        self._place = options.place(world)

    def __len__(self) -> int:
        """This rank's batches in an epoch. Raises DataError, a TypeError, where that is unknown."""
        length = self._source.length()
        if length is None:
            why = "the number of its batches is unknown until they are over"
            raise DataError.of("len", type(self.dataset).__name__, why, "iterate, or give the dataset or the sampler a __len__")
        return length

    def __iter__(self) -> Iterator[Any]:
        return self.iterate(0)

    def iterate(self, skip: int) -> Iterator[Any]:
        """The batches of an epoch without the first `skip` of those that are due."""
        position = self._begin(skip)
        watchers, counting, complete = tuple(self._watchers), self._source.counting, False
        try:
            for watcher in watchers:
                watcher.begin(self)
            left = self._source.left(position.start)
            for batch, last, tally in self._source.open(self._aim(position), self._place):
                position.yielded += 1
                self._tally, self._last = tally, last
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

    def _begin(self, skip: int) -> Position:
        position = Position(self._position.epoch + 1) if self._running else self._settle()
        self._epochs.tell(position.epoch)
        position.seeds = position.seeds or self._dice.roll(position.epoch)
        self._snapshot(position)
        self._dice.apply(position.seeds)
        position.skip(skip, self._source.stride)
        self._tally, self._last = None, False
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
        return Aim(
            position.start,
            position.number,
            position.seeds,
            self._dice.worker_seed(position.seeds),
            position.epoch,
            position.shares,
        )

    def _end(self, position: Position, complete: bool) -> None:
        if self._position is not position:
            return  # another iteration began meanwhile
        self._dice.release()
        self._left = None if complete else self.state_dict()
        self._epochs.follow()
        chosen = self._epochs.current
        self._epochs.tell(position.epoch + 1 if chosen == position.epoch else chosen)
        self._position, self._running = Position(self._epochs.current), False


def _count_down(left: int | None, last: bool) -> tuple[int | None, int | None]:
    """What is left with this batch and after it. A length that was wrong is unknown from where it shows."""
    if last:
        return 1, None
    return (None, None) if left is None or left < 2 else (left, left - 1)
