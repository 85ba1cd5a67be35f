"""One data rank's samples of any iterable dataset: its part of every step's, with a short last step filled up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

from attrs import frozen
from torch.utils.data import IterableDataset

from restoke.data.dealing import check_cut
from restoke.data.rounds import Round, begin, chunks, cut, spread
from restoke.data.shard import length_of


@final
@frozen
class StreamRule:
    """A step of all `ranks` takes `full` samples; those of a short last step are filled up (`even`), left out (`drop_last`), or
    as they are. `spread`: in as small parts as can be."""

    ranks: int
    full: int
    even: bool
    drop_last: bool
    spread: bool = False

    @property
    def share(self) -> int:
        """One rank's samples in a full step."""
        return self.full // self.ranks

    def steps(self, head: Sequence[Any], rest: Iterable[Any]) -> Iterator[Round]:
        """The steps of `rest`, a part of the epoch that began with the `full` samples of `head`."""
        if self.spread:
            return spread(chunks(rest, self.full, drop_last=self.drop_last), head, self.ranks, even=self.even)
        even = self.even and self.ranks > 1
        return cut(chunks(rest, self.full), head, self.ranks, self.full, even=even, drop_last=self.drop_last)

    def length(self, samples: int, rank: int) -> int:
        """A rank's steps of so many samples."""
        steps, short = divmod(samples, self.full)
        if self.drop_last or not short:
            return steps
        return steps if not self.even and rank * self.share >= short else steps + 1


def rule_for(size: int | None, ranks: int, *, even: bool, drop_last: bool, split: bool, spread: bool = False) -> StreamRule:
    """The rule for batches of `size` samples of one rank, or of all where they are `split`; None: one by one.

    Raises:
        DataError: a batch cannot be cut into equal parts.
    """
    if not split:
        return StreamRule(ranks, (size or 1) * ranks, even, drop_last, spread)
    check_cut(size, ranks)
    return StreamRule(ranks, size or ranks, even, drop_last, spread)


@final
class StreamShare(IterableDataset[Any]):
    """One of `num_replicas` shares of an iterable dataset, sample by sample. All ranks must read the same samples.

    Of every `batch_size` samples for each rank (with `split_batches`: for all together) a rank has its consecutive part; a
    short last step is filled up with the epoch's first samples, or dropped, or, without `even_batches`, dealt as it is.

    Raises:
        DataError: with `split_batches` a batch cannot be cut into `num_replicas` equal parts.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int = 1,
        *,
        num_replicas: int,
        rank: int,
        drop_last: bool = False,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        super().__init__()
        self.dataset, self.batch_size, self.num_replicas, self.rank = dataset, batch_size, num_replicas, rank
        self._rule = rule_for(batch_size, num_replicas, even=even_batches, drop_last=drop_last, split=split_batches)

    def __iter__(self) -> Iterator[Any]:
        head, rest = begin(self.dataset, self._rule.full, 0)
        for turn in self._rule.steps(head, rest):
            yield from turn.parts[self.rank]

    def __len__(self) -> int:
        rule, samples = self._rule, length_of(self.dataset)
        if rule.even or rule.drop_last:
            return rule.length(samples, self.rank) * rule.share
        steps, short = divmod(samples, rule.full)
        return steps * rule.share + min(max(short - self.rank * rule.share, 0), rule.share)
