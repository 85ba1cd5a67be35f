"""The cuts of length buckets as arrays: sorting, sizes, and that the count agrees with the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restoke.data.bucket_plan import Rule, bucket_sizes, by_length, count, cut, index_type, plan_epoch

LENGTHS = st.lists(st.integers(0, 2**63), min_size=1, max_size=60) | st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(LENGTHS, st.sampled_from([np.uint64, np.float64]))
def test_equal_lengths_keep_their_order(lengths: list[int], dtype: type) -> None:
    array = np.array(lengths, dtype=dtype)
    assert by_length(array).tolist() == sorted(range(len(lengths)), key=lambda index: array[index])


@pytest.mark.parametrize("bits", [57, 58, 59, 63])
def test_lengths_too_long_to_be_sorted_as_one_number_are_sorted_all_the_same(bits: int) -> None:
    array = np.array([2**bits, 0, 2**bits - 1, 2**bits, 5] * 7, dtype=np.uint64)  # 35 samples: 6 bits of index
    assert by_length(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize(("samples", "dtype"), [(1, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)])
def test_indices_are_as_narrow_as_they_can_be(samples: int, dtype: type) -> None:
    assert index_type(samples) is dtype


@given(st.integers(1, 500), st.data())
def test_buckets_are_those_of_array_split(samples: int, data: st.DataObject) -> None:
    buckets = data.draw(st.integers(1, samples))
    assert bucket_sizes(samples, buckets).tolist() == [len(part) for part in np.array_split(np.arange(samples), buckets)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 40), st.booleans(), st.booleans(), st.booleans())
def test_the_count_agrees_with_the_cut_also_of_empty_buckets(
    sizes: list[int], slice_size: int, join: bool, drop: bool, shuffle: bool
) -> None:
    order, rule = np.arange(sum(sizes)), Rule(slice_size, join, drop)
    table = cut(order, np.array(sizes), rule, np.random.default_rng(0) if shuffle else None)
    tally = count(np.array(sizes), rule)
    assert table.shape == (tally.slices, slice_size)
    drawn = len(np.unique(table))
    assert (table.size - drawn, len(order) - drawn) == (tally.padded, tally.dropped)


def test_by_hand() -> None:
    sizes = np.array([5, 4])
    rows = {
        (False, False): [[0, 1, 2], [3, 4, 0], [5, 6, 7], [8, 5, 6]],
        (False, True): [[0, 1, 2], [5, 6, 7]],
        (True, False): [[0, 1, 2], [3, 4, 8], [5, 6, 7]],
        (True, True): [[0, 1, 2], [3, 4, 8], [5, 6, 7]],
    }
    for (join, drop), expected in rows.items():
        assert plan_epoch(sizes, Rule(3, join, drop), lambda _: None).table.tolist() == expected
    assert plan_epoch(sizes, Rule(7, True, False), lambda _: None).table.tolist() == [
        [0, 1, 2, 3, 4, 5, 6],
        [7, 8, 5, 6, 7, 8, 5],
    ]
    assert plan_epoch(sizes, Rule(7, True, True), lambda _: None).table.tolist() == [[0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("drop", [False, True])
def test_shared_slices_follow_each_other_in_length(drop: bool) -> None:
    sizes = np.full(20, 6)  # none of them fills a slice: all is shared
    plan = plan_epoch(sizes, Rule(8, True, drop), np.random.default_rng)
    assert np.concatenate(sorted(sorted(row) for row in plan.table.tolist())).tolist() == [*range(120)]


def test_each_order_has_a_stream_of_its_own() -> None:
    asked: list[int] = []

    def streams(number: int) -> np.random.Generator:
        asked.append(number)
        return np.random.default_rng(number)

    plan_epoch(np.array([5, 4]), Rule(3, False, False), streams)
    assert asked == [0, 1]
