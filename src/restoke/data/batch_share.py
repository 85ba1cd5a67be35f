"""One data rank's batches of any batch sampler: whole ones in turn, or its part of each, and what of them is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, final

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from restoke.data.dealing import check_cut
from restoke.data.rounds import Batch, Round, Tally, begin, chunks, cut, fill_by, rounds, spread, whole
from restoke.data.shard import length_of, tell_epoch


@final
class BatchShare(Sampler[Any]):
    """One of `num_replicas` shares of a batch sampler's batches.

    Whole batches go to the ranks in turn; an incomplete last round is filled up from the epoch's first entries, or, where the
    batch sampler has no `batch_size`, with its first batches. With `split_batches` every batch is cut among the ranks, and a
    short last one is filled up first. Without `even_batches`, which may be changed between two epochs, nothing is filled up. A
    batch sampler with `drop_last` loses what is incomplete.

    Raises:
        DataError: a batch cannot be cut into `num_replicas` equal parts.
    """

    def __init__(
        self,
        batch_sampler: Iterable[Any],
        *,
        num_replicas: int,
        rank: int,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        super().__init__()
        self.batch_sampler, self.num_replicas, self.rank = batch_sampler, num_replicas, rank
        size = getattr(batch_sampler, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None
        self.drop_last = getattr(batch_sampler, "drop_last", False) is True
        self.split_batches, self.even_batches = split_batches, even_batches
        self.epoch = 0
        self._start = 0
        if split_batches and num_replicas > 1:
            check_cut(self.batch_size, num_replicas)

    @property
    def counts_samples(self) -> bool:
        """Whether places in the order count samples, which any batch size continues; else they count batches."""
        return type(self.batch_sampler) is BatchSampler

    @property
    def stride(self) -> int:
        """By how much one step of all ranks moves the place."""
        batches = 1 if self.split_batches else self.num_replicas
        return batches * (self.batch_size or 1) if self.counts_samples else batches

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _ in self.dealt())

    def dealt(self) -> Iterator[tuple[Any, Tally]]:
        """This rank's batches, each with the count of its step."""
        if self.num_replicas == 1:
            yield from ((batch, whole(len(batch), 1)) for batch in self._order()[1])
            return
        for parts, tally in self.steps():
            if tally.sizes[self.rank]:
                yield parts[self.rank], tally

    def steps(self) -> Iterator[Round]:
        """Every rank's batches, from where `begin_at` said."""
        head, batches = self._order()
        if self.split_batches:
            size = self.batch_size or self.num_replicas
            first: Batch = head[0] if head else ()
            return cut(batches, first, self.num_replicas, size, even=self.even_batches, drop_last=self.drop_last)
        fill = fill_by(self.num_replicas, self.batch_size, even=self.even_batches, drop_last=self.drop_last)
        return rounds(batches, head, self.num_replicas, fill, self.batch_size)

    def spread(self) -> Iterator[tuple[Any, Tally]]:
        """Every rank's parts of each step, as small as they can be, and the count."""
        head, groups = self._groups()
        return ((turn.parts, turn.tally) for turn in spread(groups, head, self.num_replicas, even=True))

    def _groups(self) -> tuple[list[Any], Iterator[list[Any]]]:
        """The epoch's first entries, and those of each step of all ranks together."""
        head, batches = self._order()
        if self.split_batches:
            return list(head[0]) if head else [], (list(batch) for batch in batches)
        turns = chunks(batches, self.num_replicas, drop_last=self.drop_last)
        return list(chain.from_iterable(head)), (list(chain.from_iterable(turn)) for turn in turns)

    def _order(self) -> tuple[list[Batch], Iterator[Batch]]:
        """The epoch's first batches, and all from the start on."""
        start, self._start = self._start, 0
        given = self.batch_sampler
        if type(given) is not BatchSampler:
            return begin(given, self.num_replicas, start)
        size, span = given.batch_size, given.batch_size * self.num_replicas
        if (known := known_order(given.sampler)) is not None:
            return list(slices(known[:span], size, 0)), slices(known, size, start, given)
        first, rest = begin(given.sampler, span, start)
        return list(chunks(first, size)), chunks(rest, size, drop_last=given.drop_last)

    def __len__(self) -> int:
        return self.left(0)

    def left(self, start: int) -> int:
        """This rank's batches from place `start` of the global order on. Raises TypeError if their number is unknown."""
        given, short = self.batch_sampler, 0
        if type(given) is BatchSampler:
            samples = max(length_of(given.sampler) - start, 0)
            full, short = divmod(samples, given.batch_size)
            batches = full + (short > 0 and not given.drop_last)
        else:
            batches = max(length_of(given) - start, 0)
        return self._share(batches, 0 if self.drop_last else short)

    def _share(self, batches: int, short: int) -> int:
        """Of so many batches, the last of them with `short` entries if that is not 0."""
        if self.split_batches:
            idle = short and not self.even_batches and self.rank * ((self.batch_size or 1) // self.num_replicas) >= short
            return batches - 1 if idle else batches
        turns, over = divmod(batches, self.num_replicas)
        if self.drop_last or not over:
            return turns
        return turns + 1 if self.even_batches or self.rank < over else turns

    def begin_at(self, start: int) -> None:
        """The next iteration leaves out what lies before place `start` of the global order."""
        self._start = start

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers inside."""
        self.epoch = epoch
        tell_epoch(self.batch_sampler, epoch)


def known_order(sampler: object) -> Sequence[int] | None:
    """All indices of torch's own samplers, drawn as they draw them; None where only iterating can tell."""
    if type(sampler) is SequentialSampler:
        return range(len(sampler))
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.generator is None:
        return None
    length = len(sampler.data_source)
    return torch.randperm(length, generator=sampler.generator).tolist() if len(sampler) == length else None


def slices(order: Sequence[int], size: int, start: int, given: BatchSampler | None = None) -> Iterator[list[int]]:
    """Consecutive batches of an order from place `start` on, as `given` makes them."""
    drop_last = given is not None and given.drop_last
    for at in range(start, len(order) - (size - 1 if drop_last else 0), size):
        yield list(order[at : at + size])
    if given is not None and type(given.sampler) is RandomSampler:
        torch.randperm(len(order), generator=given.sampler.generator)  # torch's draws once more where its epoch ends
