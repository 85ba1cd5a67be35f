"""How one data rank's batches are made from the samplers that were given, and how its place among them is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

from attrs import evolve, frozen
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from restoke.data.batch_share import BatchShare
from restoke.data.bucketed import BucketedDistributedSampler
from restoke.data.dealing import Dealing, check_cut
from restoke.data.group_sampler import DistributedGroupSampler
from restoke.data.options import Options
from restoke.data.protocols import Counting, is_rank_aware, nested
from restoke.data.rounds import Tally, strided
from restoke.data.seedable import seedable
from restoke.data.shard import ShardedBatchSampler, ShardedSampler, share
from restoke.errors import DataError
from restoke.world import World


@frozen
class Route:
    """`indices` are this rank's, batch by batch. Positions count in `unit`s, of which all ranks together consume `stride`
    with one batch each."""

    indices: Any
    sampler: Any  # as the user sees it
    batch_sampler: Any  # as the user sees it
    unit: str
    stride: int
    left: Callable[[int], int]  # this rank's batches from a position on; raises TypeError where that is unknown
    begin: Callable[[int], int]  # lets the next iteration begin there; returns how many batches it must skip itself
    counting: tuple[Counting, ...] = ()  # samplers that count their own position, in batches
    tallies: Callable[[], Iterator[Tally | None]] = partial(repeat, None)  # of the batches, where nothing deals whole ones
    share: BatchShare | None = None  # what deals whole batches
    spread: bool = False  # the parts of all ranks, not this rank's

    def dealt(self) -> Iterator[tuple[Any, Tally | None]]:
        """The indices, each batch with the count of its step where that is known."""
        if self.share is None:
            return zip(self.indices, self.tallies(), strict=False)
        return self.share.spread() if self.spread else self.share.dealt()


def route(options: Options, world: World) -> Route:
    """The way from the order of an indexed dataset to this rank's batches.

    Raises:
        DataError: a sampler contradicts the world, or the batch size.
    """
    if options.dealing is not None:
        return _by_dealing(options, options.dealing, world)
    return _by_samples(options, world) if options.batch_sampler is None else _by_batches(options.batch_sampler, world)


def _by_dealing(options: Options, rules: Dealing, world: World) -> Route:
    given = _given_batches(options, world)
    if given is None:
        return _by_samples(_own_part(options, rules, world), world)
    if is_rank_aware("batch_sampler", given, world):
        if rules.split_batches:
            why = "its batches are this rank's already, and are not cut"
            raise DataError.of("split_batches", True, why, "split_batches=False, or a batch sampler of all ranks' batches")
        return _by_batches(given, world)
    batches = seedable(given, rules.data_seed) if rules.use_seedable_sampler else given
    share = BatchShare(
        batches,
        num_replicas=world.data_size,
        rank=world.data_rank,
        split_batches=rules.split_batches,
        even_batches=rules.even_batches,
    )
    shown = batches if world.data_size == 1 else share
    unit = "samples" if share.counts_samples else "batches"

    def begin(start: int) -> int:
        share.begin_at(start)
        return 0

    inner = getattr(batches, "sampler", None)
    return Route(share, inner, shown, unit, share.stride, share.left, begin, share=share)


def _given_batches(options: Options, world: World) -> Any:
    """The batches of all ranks; None where a sampler is this rank's own, or samples come one by one."""
    if options.batch_sampler is not None:
        return options.batch_sampler
    if options.batch_size is None:
        return options.sampler if isinstance(options.sampler, BatchSampler) else None
    sampler = _default(options, world) if options.sampler is None else options.sampler
    if is_rank_aware("sampler", sampler, world):
        return None
    return BatchSampler(sampler, options.batch_size, options.drop_last)


def _own_part(options: Options, rules: Dealing, world: World) -> Options:
    """The options as for this rank alone."""
    if options.batch_size is None and not rules.even_batches:
        why = "samples that come one by one are dealt evenly"
        raise DataError.of("even_batches", False, why, "a batch_size, or even_batches=True")
    if not rules.split_batches:
        return options
    check_cut(options.batch_size, world.data_size)
    return evolve(options, batch_size=(options.batch_size or 1) // world.data_size)


def _by_batches(given: Any, world: World) -> Route:
    aware = is_rank_aware("batch_sampler", given, world)
    inner = getattr(given, "sampler", None)
    if aware and not isinstance(given, ShardedBatchSampler):
        return _as_it_is(given, inner, given, world)
    sharded = given if aware else ShardedBatchSampler(given, num_replicas=world.data_size, rank=world.data_rank)
    shown = given if world.data_size == 1 else sharded

    def begin(start: int) -> int:
        sharded.begin_at(start)
        return 0

    return Route(sharded, inner, shown, "batches", world.data_size, sharded.left, begin)


def _by_samples(options: Options, world: World) -> Route:
    given, size = options.sampler, options.batch_size
    aware = given is not None and is_rank_aware("sampler", given, world)
    if aware and type(given) not in (DistributedSampler, ShardedSampler, DistributedGroupSampler):
        _check_buckets(given, size)
        batches = given if size is None else BatchSampler(given, size, options.drop_last)  # type: ignore[arg-type]
        return _as_it_is(batches, given, None if size is None else batches, world)
    sharded, shown = _sharded(options, world)
    indices = sharded if size is None else BatchSampler(sharded, size, options.drop_last)

    def left(start: int) -> int:
        return share(sharded.left(start), size or 1, drop_last=options.drop_last)

    def begin(start: int) -> int:
        sharded.begin_at(start)
        return 0

    stride = (size or 1) * world.data_size
    return Route(
        indices,
        shown,
        None if size is None else indices,
        "samples",
        stride,
        left,
        begin,
        tallies=partial(_tallies, sharded, size or 1),
    )


def _tallies(sharded: ShardedSampler | DistributedGroupSampler, size: int) -> Iterator[Tally | None]:
    """Where the order turns out to be longer than it said, the rest is unknown."""
    entries = sharded.due()
    known = () if entries is None else strided(entries, sharded.num_replicas, size, drop_last=sharded.drop_last)
    return chain(known, repeat(None))


def _sharded(options: Options, world: World) -> tuple[ShardedSampler | DistributedGroupSampler, Any]:
    """The sampler that deals samples to this rank, and the one that is shown for it."""
    given = options.sampler
    if isinstance(given, ShardedSampler | DistributedGroupSampler):
        return given, given
    whole = _default(options, world) if given is None else given
    drop_last = given.drop_last if isinstance(given, DistributedSampler) else options.drop_last
    sharded = ShardedSampler(whole, num_replicas=world.data_size, rank=world.data_rank, drop_last=drop_last)
    return sharded, whole if world.data_size == 1 or isinstance(given, DistributedSampler) else sharded


def _default(options: Options, world: World) -> Any:
    if not options.shuffle or len(options.dataset) == 0:
        return SequentialSampler(options.dataset)
    own = world.data_size == 1 or options.dealing is not None
    return RandomSampler(options.dataset, generator=options.generator if own else None)


def _as_it_is(indices: Any, sampler: Any, batch_sampler: Any, world: World) -> Route:
    counting = tuple(item for item in nested(indices) if isinstance(item, Counting))
    if counting:
        return Route(indices, sampler, batch_sampler, "counted batches", 1, lambda _: len(indices), lambda _: 0, counting)
    unit = f"own batches of {world.data_size} ranks"
    return Route(indices, sampler, batch_sampler, unit, 1, lambda start: len(indices) - start, lambda start: start)


def _check_buckets(sampler: Any, batch_size: int | None) -> None:
    if isinstance(sampler, BucketedDistributedSampler) and sampler.batch_size != batch_size:
        why = f"the bucketed sampler makes batches of {sampler.batch_size}: others would mix its buckets"
        raise DataError.of("batch_size", batch_size, why, f"batch_size={sampler.batch_size}, or a sampler of that size")
