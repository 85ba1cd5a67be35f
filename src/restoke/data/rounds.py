"""Steps of all data ranks, as pure functions of one global order: who gets what, and what of it repeats other entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, cycle, islice
from typing import Any, NamedTuple, TypeVar, final

from attrs import frozen

T = TypeVar("T")
Batch = Sequence[Any]


@final
@frozen
class Tally:
    """Of one step and each data rank: how many entries its batch has, and how many of them, from the front, are real. Those
    behind repeat others of the epoch. 0 entries: the rank has no batch in this step."""

    sizes: tuple[int, ...]
    real: tuple[int, ...]


class Round(NamedTuple):
    """One step: each rank's entries, and the count of them."""

    parts: Sequence[Batch]
    tally: Tally


Fill = Callable[[list[Batch], list[Batch]], Round | None]


@lru_cache(maxsize=64)
def whole(size: int, ranks: int) -> Tally:
    """That of a step in which nothing is repeated."""
    return Tally((size,) * ranks, (size,) * ranks)


def begin(order: Iterable[T], head: int, start: int) -> tuple[list[T], Iterator[T]]:
    """The first `head` entries of an order, and all from place `start` on."""
    source = iter(order)
    first = list(islice(source, head))
    return first, islice(chain(first, source), start, None)


def chunks(entries: Iterable[T], size: int, *, drop_last: bool = False) -> Iterator[list[T]]:
    """Consecutive lists of `size` entries; the last may be shorter."""
    source = iter(entries)
    while chunk := list(islice(source, size)):
        if len(chunk) == size or not drop_last:
            yield chunk


def rounds(batches: Iterator[Batch], head: list[Batch], ranks: int, fill: Fill, size: int | None) -> Iterator[Round]:
    """Rounds of `ranks` batches. What is left at the end, or has a last batch of fewer than `size` entries there, becomes what
    `fill` makes of it and of the epoch's first batches, `head`; None leaves it out."""
    dealt = list(islice(batches, ranks))
    while dealt:
        following = list(islice(batches, ranks))
        if following or (len(dealt) == ranks and (size is None or len(dealt[-1]) == size)):
            yield Round(dealt, _counted(dealt))
        elif (last := fill(dealt, head)) is not None:
            yield last
        dealt = following


def fill_by(ranks: int, size: int | None, *, even: bool, drop_last: bool) -> Fill:
    """What becomes of an incomplete round of batches of `size` entries; None: each has a size of its own."""
    if drop_last:
        return lambda dealt, head: None
    if not even:
        return lambda dealt, head: _as_it_is([*dealt, *[()] * (ranks - len(dealt))])
    return _repeat_batches(ranks) if size is None else _repeat_entries(ranks, size)


def cut(batches: Iterable[Batch], head: Batch, ranks: int, size: int, *, even: bool, drop_last: bool) -> Iterator[Round]:
    """Every batch of `size` entries as equal parts, a multiple of `ranks`. A shorter one is filled up with the epoch's first
    entries, `head`, cut as it is, or left out."""
    for batch in batches:
        count = len(batch)
        if count < size and drop_last:
            continue
        share = -(-max(count, size) // ranks)
        yield _parts(_filled(batch, head, share * ranks if even else count), ranks, share, count)


def spread(groups: Iterable[Batch], head: Batch, ranks: int, *, even: bool) -> Iterator[Round]:
    """Every group as equal parts, as small as they can be; at most `ranks` - 1 entries of `head` come again."""
    for group in groups:
        share = -(-len(group) // ranks)
        yield _parts(_filled(group, head, share * ranks if even else len(group)), ranks, share, len(group))


def strided(total: int, ranks: int, size: int, *, drop_last: bool) -> Iterator[Tally]:
    """The counts of an order of `total` entries of which every rank takes every `ranks`-th, as many as the others, in batches
    of `size`; those that lack are repeated, or with `drop_last` the last are dropped."""
    own = total // ranks if drop_last else -(-total // ranks)
    real = [min(own, -(-max(total - rank, 0) // ranks)) for rank in range(ranks)]
    least = min(real)
    for at in range(0, own, size):
        count = min(size, own - at)
        if least >= at + count:
            yield whole(count, ranks)
        else:
            yield Tally((count,) * ranks, tuple(min(max(mine - at, 0), count) for mine in real))


def _filled(batch: Batch, head: Batch, size: int) -> Batch:
    missing = size - len(batch)
    return [*batch, *islice(cycle(head), missing)] if missing > 0 else batch


def _parts(entries: Batch, ranks: int, share: int, count: int) -> Round:
    parts = [entries[rank * share : (rank + 1) * share] for rank in range(ranks)]
    if count == share * ranks:
        return Round(parts, whole(share, ranks))
    sizes = tuple(map(len, parts))
    return Round(parts, Tally(sizes, tuple(min(max(count - rank * share, 0), size) for rank, size in enumerate(sizes))))


def _repeat_entries(ranks: int, size: int) -> Fill:
    def fill(dealt: list[Batch], head: list[Batch]) -> Round:
        again = cycle(chain.from_iterable(head))
        batches = [*dealt, *[()] * (ranks - len(dealt))]
        parts = [[*batch, *islice(again, max(size - len(batch), 0))] for batch in batches]
        return Round(parts, Tally(tuple(map(len, parts)), tuple(map(len, batches))))

    return fill


def _repeat_batches(ranks: int) -> Fill:
    def fill(dealt: list[Batch], head: list[Batch]) -> Round:
        missing = ranks - len(dealt)
        parts = [*dealt, *islice(cycle(head), missing)]
        return Round(parts, Tally(tuple(map(len, parts)), (*map(len, dealt), *(0,) * missing)))

    return fill


def _as_it_is(parts: Sequence[Batch]) -> Round:
    return Round(parts, _counted(parts))


def _counted(parts: Sequence[Batch]) -> Tally:
    sizes = tuple(map(len, parts))
    return whole(sizes[0], len(sizes)) if len(set(sizes)) == 1 else Tally(sizes, sizes)
