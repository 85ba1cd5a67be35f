"""Which samples make up every global batch of an epoch: length buckets cut into slices, in numpy, on places in length order.

A *place* is a sample's position in the order of lengths (0 is the shortest). A *slice* is one step of all replicas
together: `batch_size * num_replicas` places of one bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import xxhash
from attrs import frozen

from restoke.errors import DataError

Ints: TypeAlias = npt.NDArray[Any]  # of int32 or int64
Streams: TypeAlias = Callable[[int], np.random.Generator | None]
WITHIN = 0  # the stream that shuffles inside buckets; stream 1 + i shuffles the slices of leg i


@final
@frozen
class Rule:
    """How buckets are cut. `join` makes shared slices of what is left of all buckets, `drop` gives up what fills no slice."""

    slice_size: int
    join: bool
    drop: bool


@final
@frozen
class Leg:
    """A part of an epoch that ran with one slice size, and how many entries (padding included) were taken in it."""

    slice_size: int
    taken: int


@final
@frozen
class Tally:
    """What a cut gives: how many slices, entries that repeat a sample, and samples left out."""

    slices: int
    padded: int
    dropped: int


@final
@frozen(eq=False)
class Plan:
    """The slices of an epoch, or of what is left of one, in the order of the steps: `table` is (slices, slice_size) places.

    `digest` is a checksum of the order of places inside the buckets.
    """

    table: Ints
    tally: Tally
    digest: bytes


def by_length(lengths: npt.NDArray[Any]) -> Ints:
    """The stable order of non-negative lengths, shortest first: (samples,) indices."""
    bits = max(1, (len(lengths) - 1).bit_length())
    if lengths.dtype.kind == "f" or int(lengths.max()).bit_length() + bits > 64:
        return np.argsort(lengths, kind="stable").astype(index_type(len(lengths)))
    keys = lengths.astype(np.uint64)  # sorting (length, index) as one number is 2-4 times as fast as a stable argsort
    keys <<= np.uint64(bits)
    keys |= np.arange(len(lengths), dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << bits) - 1)
    return keys.astype(index_type(len(lengths)))


def index_type(samples: int) -> type[np.int32] | type[np.int64]:
    """The narrowest type that holds every index."""
    return np.int32 if samples <= np.iinfo(np.int32).max else np.int64


def bucket_sizes(samples: int, buckets: int) -> Ints:
    """(buckets,) sizes that differ by 1 at most, the larger ones first, as `numpy.array_split` cuts."""
    return samples // buckets + (np.arange(buckets) < samples % buckets)


def count(sizes: Ints, rule: Rule) -> Tally:
    """What `cut` will give, from the sizes alone."""
    whole, left = int((sizes // rule.slice_size).sum()), sizes % rule.slice_size
    spare = np.array([left.sum()]) if rule.join else left
    extra = spare // rule.slice_size if rule.drop else -(-spare // rule.slice_size)
    slices = whole + int(extra.sum())
    missing = slices * rule.slice_size - int(sizes.sum())
    return Tally(slices, max(0, missing), max(0, -missing))


def plan_epoch(sizes: Ints, rule: Rule, streams: Streams, legs: Iterable[Leg] = ()) -> Plan:
    """The slices of what the earlier `legs` of the epoch left, each sample of it once, in its own bucket.

    Every leg is cut again as it was, to know what it took. `streams` gives a generator by its number, or None for no shuffling.

    Raises:
        DataError: a leg took more than there was.
    """
    within = order = _shuffled(sizes, streams(WITHIN))
    starts, number = np.cumsum(sizes) - sizes, 1
    taken = np.zeros(len(within), dtype=bool)
    left = sizes
    for number, leg in enumerate(legs, start=2):
        table = cut(order, left, Rule(leg.slice_size, rule.join, rule.drop), streams(number - 1))
        if leg.taken > table.size:
            raise DataError.of("legs", leg.taken, f"only {table.size} entries were left of the epoch", "an undamaged state")
        taken[table[: leg.taken // leg.slice_size].ravel()] = True
        stays = ~taken[within]
        order, left = within[stays], np.add.reduceat(stays, starts, dtype=np.int64)
    return Plan(cut(order, left, rule, streams(number)), count(left, rule), xxhash.xxh3_64_digest(within.data))


def cut(order: Ints, sizes: Ints, rule: Rule, stream: np.random.Generator | None) -> Ints:
    """(slices, slice_size) places, from `order`, which holds buckets of these `sizes` one after another.

    The slices come in random order; without a stream in that of their first places.
    """
    whole = sizes - sizes % rule.slice_size
    in_whole = np.repeat(np.tile([True, False], len(sizes)), np.column_stack((whole, sizes - whole)).ravel())
    table: Ints = order[in_whole].reshape(-1, rule.slice_size)
    if rule.join:
        table = np.concatenate((table, _joined(order, sizes, order[~in_whole], rule, stream)))
    elif not rule.drop:
        table = np.concatenate((table, _filled(order, sizes, whole, rule.slice_size)))
    steps: Ints = np.argsort(table[:, 0], kind="stable") if stream is None else stream.permutation(len(table))
    return table[steps]


def _shuffled(sizes: Ints, stream: np.random.Generator | None) -> Ints:
    samples, buckets = int(sizes.sum()), len(sizes)
    places = np.arange(samples, dtype=index_type(samples))
    if stream is not None:  # buckets have two sizes: two matrices with a bucket in each row
        larger, size = samples % buckets, samples // buckets
        edge = larger * (size + 1)
        for rows in (places[:edge].reshape(larger, size + 1), places[edge:].reshape(buckets - larger, size)):
            stream.permuted(rows, axis=1, out=rows)
    return places


def _filled(order: Ints, sizes: Ints, whole: Ints, slice_size: int) -> Ints:
    """The last slice of every bucket that needs one more, filled up from the bucket's head."""
    short = np.flatnonzero(sizes > whole)
    starts = (np.cumsum(sizes) - sizes)[short]
    inside = (whole[short, None] + np.arange(slice_size)) % sizes[short, None]
    return order[starts[:, None] + inside]


def _joined(order: Ints, sizes: Ints, left: Ints, rule: Rule, stream: np.random.Generator | None) -> Ints:
    """Shared slices of the leftovers of all buckets, in length order, so that each is near in length."""
    left, over = np.sort(left), len(left) % rule.slice_size
    if rule.drop and stream is not None:  # not always the longest: no sample is left out of every epoch
        left = left[np.sort(stream.choice(len(left), len(left) - over, replace=False))]
    elif rule.drop:
        left = left[: len(left) - over]
    elif over:
        last = np.flatnonzero(sizes % rule.slice_size)[-1]
        start = int(sizes[:last].sum())
        bucket = order[start : start + int(sizes[last])]
        left = np.concatenate((left, np.resize(bucket, rule.slice_size - over)))
    return left.reshape(-1, rule.slice_size)
