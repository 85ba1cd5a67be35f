"""This rank's indices as torch's DataLoader takes them: from any place in the epoch, one looked ahead, repeatably random."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, final

from attrs import Factory, frozen

from restoke.data.randomness import Seeds, Sown, isolated, mix
from restoke.data.rounds import Tally

T = TypeVar("T")
Dealt = Callable[[], Iterator[tuple[Any, Tally | None]]]


@frozen
class Aim:
    """Where an iteration begins, and with which random numbers."""

    start: int  # units of the order that were consumed before
    number: int  # batches that were yielded before
    seeds: Seeds
    worker_seed: int
    epoch: int = 0
    shares: list[int] = Factory(list)  # samples that each worker took before of a share of its own
    tallies: deque[Tally | None] = Factory(deque)  # of the batches that were asked for and not given out yet


def look_ahead(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item, and whether it is the last. That the next one cannot be had is said after this one was used."""
    source = iter(items)
    try:
        held = next(source)
    except StopIteration:
        return
    while True:
        try:
            following = next(source)
        except StopIteration:
            yield held, True
            return
        except Exception:
            yield held, False
            raise
        yield held, False
        held = following


@final
class Feed:
    """Yields what `dealt` gives, a batch of indices or one at a time, without the first `skip` that it was aimed behind.

    `unseen`: they are drawn from the process's own generators. `sown`: they go to workers, which they seed.
    """

    def __init__(self, indices: Any, dealt: Dealt, *, unseen: bool, sown: bool) -> None:
        self._indices, self._dealt, self._unseen, self._sown = indices, dealt, unseen, sown
        self._aim, self._skip = Aim(0, 0, Seeds(0, 0), 0), 0
        self.exhausted = False  # whether what was yielded last is the last

    def aim(self, aim: Aim, skip: int) -> None:
        """For the next iteration."""
        self._aim, self._skip = aim, skip

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        return self._from(self._aim, self._skip)

    def _from(self, aim: Aim, skip: int) -> Iterator[Any]:
        drawn = isolated(self._dealt, aim.seeds.order) if self._unseen else self._dealt()
        note = aim.tallies.append
        for number, ((index, tally), last) in enumerate(look_ahead(islice(drawn, skip, None)), aim.number):
            self.exhausted = last
            note(tally)
            yield Sown(index, mix(aim.worker_seed, number)) if self._sown else index
