"""An iterable dataset's batches, each step dealt among the ranks: by every rank itself, by its own dataset, or by rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from itertools import chain
from typing import Any, final

import torch
from torch.utils.data import DataLoader, default_collate, default_convert
from torch.utils.data._utils.worker import WorkerInfo

from restoke import comm
from restoke.data.dealing import Dealing
from restoke.data.dispatch import NOBODYS, Sent, Steps, dispatch
from restoke.data.feed import Aim, look_ahead
from restoke.data.fingerprint import Verdict, fingerprints, judge
from restoke.data.options import Options, rank_aware_stream
from restoke.data.protocols import Counting
from restoke.data.randomness import isolated
from restoke.data.reader import Packing, Parcel, Reader, open_stream
from restoke.data.rounds import Tally, begin
from restoke.data.stream_share import StreamRule, rule_for
from restoke.errors import DataError
from restoke.said import say_once
from restoke.world import World

Given = tuple[Any, bool, Tally | None]


@final
class DealtStream:
    """A dataset that gives each rank its own share is taken as it is; where it does not say so, the ranks compare once what
    they read first. A position is reached again by reading up to it."""

    sampler = batch_sampler = None
    draws = False
    counting: tuple[Counting, ...] = ()

    def __init__(self, options: Options, rules: Dealing, world: World, generator: torch.Generator) -> None:
        self._options, self._rules, self._world, self._generator = options, rules, world, generator
        self.samplers = [options.dataset]
        self._gather: Callable[[Any], list[Any]] = partial(comm.gather_json, world=world)
        own = rank_aware_stream(options.dataset, world)
        self._unproven = not own and world.data_size > 1 and rules.dispatch_batches is not True
        self._settle(own)

    def _settle(self, own: bool) -> None:
        """Read as a share of each rank's `own`, or as one stream."""
        options, rules, world = self._options, self._rules, self._world
        if own and rules.dispatch_batches and world.data_size > 1:
            why = "the dataset gives each rank a share of its own, of which rank 0 reads only one"
            raise DataError.of("dispatch_batches", True, why, "dispatch_batches=False, or the whole dataset")
        self._own = own
        self._dispatches = not own and dispatches(options, rules, world)
        self._rule = self._rule_for(own)
        rank = None if self._dispatches else 0 if own else world.data_rank
        self._reader = Reader(options.dataset, self._rule, rank, options.num_workers)
        sown = options.num_workers > 0 and options.worker_init_fn is None
        single = options.batch_size is None
        collate = options.collate_fn or (default_convert if single else default_collate)
        packing = Packing(collate, single=single, parts=self._dispatches, sown=sown)
        keywords = options.for_torch(world) | {"collate_fn": packing, "batch_size": None, "generator": self._generator}
        self.torch: DataLoader[Any] = DataLoader(self._reader, **keywords)
        self.unit = f"own samples of {world.data_size} ranks" if own else "stream samples"
        self.stride = self._rule.full

    def _rule_for(self, own: bool) -> StreamRule:
        options, rules, ranks = self._options, self._rules, self._world.data_size
        even, drop_last = rules.even_batches, options.drop_last
        rule = rule_for(
            options.batch_size, ranks, even=even, drop_last=drop_last, split=rules.split_batches, spread=self._dispatches
        )
        return StreamRule(1, rule.share, False, drop_last) if own else rule

    def length(self) -> int | None:
        if not isinstance(self._options.dataset, Sized):
            return None
        return self._rule.length(len(self._options.dataset), 0 if self._own else self._world.data_rank)

    def left(self, start: int) -> int | None:
        return None

    def open(self, aim: Aim, place: Callable[[Any], Any]) -> Iterator[Given]:
        parcels = self._proven(aim) if self._unproven else self._parcels(aim)
        steps: Steps | None = None if parcels is None else ((item.batch, item.tally, item.worker) for item in parcels)
        sent = dispatch(steps, self._world) if self._dispatches else _here(steps or iter(()), place)
        return self._given(aim, place, sent)

    def _given(self, aim: Aim, place: Callable[[Any], Any], sent: Iterator[Sent]) -> Iterator[Given]:
        for batch, last, tally, worker in sent:
            if worker != NOBODYS:
                aim.shares[worker] += sum(tally.real)
            yield place(batch), last, None if self._own else tally

    def _parcels(self, aim: Aim) -> Iterator[Parcel] | None:
        """Those that this rank reads; None where rank 0 reads for it."""
        shares = _shares(aim, max(self._options.num_workers, 1))
        if self._dispatches and self._world.rank > 0:
            return None
        self._reader.aim(aim.start, aim.seeds.workers, aim.worker_seed, aim.epoch, shares, self._unproven)
        return iter(self.torch)

    def _proven(self, aim: Aim) -> Iterator[Parcel] | None:
        """As `_parcels`, once it is known that all ranks read the same, or each its own share. All ranks call this."""
        parcels = self._parcels(aim)
        if parcels is None:
            first, own = None, self._look(aim)
        else:
            first = next(parcels, None)
            own = [] if first is None else list(first.first)
        found = self._gather(own)
        verdict = Verdict.ALIKE if None in found else judge(found)
        self._unproven = False
        if verdict is not Verdict.ALIKE and self._own_shares(verdict, own == self._look(aim)):
            self._settle(own=True)
            return self._parcels(aim)
        return parcels if first is None or parcels is None else chain([first], parcels)

    def _own_shares(self, verdict: Verdict, again: bool) -> bool:
        """Each rank reads something else: its own share, if that is what it reads every time."""
        name = type(self._options.dataset).__name__
        steady = all(self._gather(again))
        if steady and verdict is Verdict.APART:
            self._say(f"{name} gives each rank its own share, and is not shared out again (rank_aware = True on it says so)")
            return True
        if not self._dispatches:
            why = "the ranks read different samples, and not each a share of its own: data would be lost, or come twice"
            instead = (
                "one order on all ranks (by a seed and set_epoch), or rank_aware = True on a dataset that shares itself out"
            )
            raise DataError.of("dataset", name, why, instead)
        self._say(f"{name} is read by rank 0 for all: set rank_aware = True if it gives each rank a share of its own")
        return False

    def _say(self, line: str) -> None:
        if self._world.is_main:
            say_once(line)

    def _look(self, aim: Aim) -> list[int] | None:
        """The fingerprints of what this rank reads first; None where it cannot read."""
        workers = self._options.num_workers
        dataset = self._options.dataset
        info = WorkerInfo(id=0, num_workers=workers, seed=0, dataset=dataset) if workers else None

        def look() -> Iterator[list[int]]:
            stream, _ = open_stream(dataset, aim.seeds.workers, info)
            yield fingerprints(begin(stream, self._rule.full, 0)[0])

        try:
            return next(isolated(look, aim.seeds.workers))
        except Exception:  # noqa: BLE001 - a dataset that only rank 0 can read may fail in any way
            return None


def dispatches(options: Options, rules: Dealing, world: World) -> bool:
    """Whether rank 0 reads for all.

    Raises:
        DataError: dispatched batches are to be uneven.
    """
    if world.data_size == 1 or rules.dispatch_batches is False:
        return False
    if rules.dispatch_batches and not rules.even_batches:
        why = "dispatched steps have equal parts on all ranks"
        raise DataError.of("even_batches", False, why, "even_batches=True, or dispatch_batches=False")
    return rules.dispatch_batches or (options.streams and rules.device_placement and rules.even_batches)


def _here(steps: Steps, place: Callable[[Any], Any]) -> Iterator[Sent]:
    """This rank reads for itself; the next batch is on its way to the device before this one is given out."""
    placed = ((place(batch), tally, worker) for batch, tally, worker in steps)
    return ((batch, last, tally, worker) for (batch, tally, worker), last in look_ahead(placed))


def _shares(aim: Aim, workers: int) -> Sequence[int]:
    if len(aim.shares) != workers:
        if any(aim.shares):
            why = f"the stream is shared out among {len(aim.shares)} workers, and was left in the middle of an epoch"
            raise DataError.of("num_workers", workers, why, f"num_workers={len(aim.shares)}, or begin an epoch")
        aim.shares[:] = [0] * workers
    return aim.shares
