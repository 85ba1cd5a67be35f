"""Reads an iterable dataset in this process or in workers, which share it without repeating each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, final

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from restoke.data.dispatch import NOBODYS
from restoke.data.fingerprint import fingerprints
from restoke.data.protocols import Epochal
from restoke.data.randomness import isolated, mix, sow
from restoke.data.rounds import Round, Tally, begin
from restoke.data.stream_share import StreamRule

START, SEED, WORKERS, EPOCH, FIRST, SHARES = range(6)  # places in what is told to the workers; the last and on: one for each


class Parcel(NamedTuple):
    """One step: what a rank gets of it, or all ranks' parts; and which worker took it from a share of its own (or NOBODYS).
    `first` are the fingerprints of the epoch's first samples, where they are wanted."""

    batch: Any
    tally: Tally
    worker: int
    seed: int
    first: Sequence[int]


@final
class Watched:
    """What a dataset is told of its worker; notes whether it looks which of how many that is."""

    def __init__(self, info: Any, seed: int) -> None:
        self._info, self.seed, self.asked = info, seed, False

    def __getattr__(self, name: str) -> Any:
        self.asked = self.asked or name in ("id", "num_workers")
        return getattr(self._info, name)


def open_stream(dataset: Any, seed: int, info: Any) -> tuple[Iterator[Any], bool]:
    """The dataset's samples, and whether they are the share of this worker alone. Every worker is shown the same seed."""
    if info is None:
        return iter(dataset), False
    watched, real = Watched(info, seed), torch_worker._worker_info
    torch_worker._worker_info = watched  # type: ignore[assignment]
    try:
        stream = iter(dataset)
        first = list(islice(stream, 1))
    finally:
        torch_worker._worker_info = real
    return chain(first, stream), watched.asked


@final
class Reader(IterableDataset[Parcel]):
    """Yields the steps of one rank, or of all (`rank` None). Workers that look at their number read a share each; of others
    each reads the whole stream, and makes its turn of the steps."""

    def __init__(self, dataset: Any, rule: StreamRule, rank: int | None, workers: int) -> None:
        super().__init__()
        self.dataset, self.rule, self.rank = dataset, rule, rank
        self._told = torch.zeros(SHARES + max(workers, 1), dtype=torch.int64)
        if workers:
            self._told.share_memory_()  # type: ignore[no-untyped-call]  # workers that persist hear of the next epoch, too

    def aim(self, start: int, seed: int, worker_seed: int, epoch: int, shares: Sequence[int], first: bool) -> None:
        """For the next iteration: where the stream, or each worker's share of it, begins, and with which random numbers."""
        self._told.copy_(torch.tensor([start, seed, worker_seed, epoch, first, *shares]))

    def __iter__(self) -> Iterator[Parcel]:
        told = self._told.tolist()
        return isolated(lambda: self._parcels(told), told[SEED])

    def _parcels(self, told: list[int]) -> Iterator[Parcel]:
        info = get_worker_info()
        self._tell(told[EPOCH], info)
        stream, own = open_stream(self.dataset, told[SEED], info)
        start = told[SHARES + info.id] if own and info is not None else told[START]
        head, rest = begin(stream, self.rule.full, start)
        turns: Iterator[tuple[int, Round]] = enumerate(self.rule.steps(head, rest))
        if info is not None and not own:
            turns = islice(turns, info.id, None, info.num_workers)
        worker = info.id if own and info is not None else NOBODYS
        first = fingerprints(head) if told[FIRST] else ()
        for number, turn in turns:
            if self.rank is None or turn.tally.sizes[self.rank]:
                given = turn.parts if self.rank is None else turn.parts[self.rank]
                seed = mix(told[WORKERS], worker, start, number)
                yield Parcel(given, turn.tally, worker, seed, first)
                first = ()

    def _tell(self, epoch: int, info: Any) -> None:
        if isinstance(self.dataset, Epochal):
            if info is not None:
                self.dataset.set_epoch(epoch)
        elif isinstance(generator := getattr(self.dataset, "generator", None), torch.Generator):
            generator.manual_seed(epoch)


@final
class Packing:
    """Collates a parcel: one batch, or one for each rank. `single`: samples come one by one. `sown`: seeds its worker first."""

    def __init__(self, collate: Callable[[Any], Any], *, single: bool, parts: bool, sown: bool) -> None:
        self._collate, self._single, self._parts, self._sown = collate, single, parts, sown

    def __call__(self, parcel: Parcel) -> Parcel:
        if self._sown:
            sow(None, parcel.seed)
        batch = [self._one(part) for part in parcel.batch] if self._parts else self._one(parcel.batch)
        return parcel._replace(batch=batch)

    def _one(self, entries: Sequence[Any]) -> Any:
        return self._collate(entries[0] if self._single else entries)
