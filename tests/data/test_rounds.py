"""Who gets what of one order: worked tables to the letter, and properties over sizes, ranks and rules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from restoke.data import BatchShare, StreamShare
from restoke.data.rounds import Tally, begin, chunks, spread
from restoke.errors import DataError

Table = dict[tuple[int, int, int], list[list[list[int]]]]

EVEN: Table = {
    (24, 3, 2): [
        [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 20]],
        [[3, 4, 5], [9, 10, 11], [15, 16, 17], [21, 22, 23]],
    ],
    (10, 2, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]],
    (11, 2, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]]],
    (9, 2, 2): [[[0, 1], [4, 5], [8, 0]], [[2, 3], [6, 7], [1, 2]]],
    (13, 3, 2): [[[0, 1, 2], [6, 7, 8], [12, 0, 1]], [[3, 4, 5], [9, 10, 11], [2, 3, 4]]],
    (20, 3, 2): [
        [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 0]],
        [[3, 4, 5], [9, 10, 11], [15, 16, 17], [1, 2, 3]],
    ],
    (22, 3, 2): [
        [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 20]],
        [[3, 4, 5], [9, 10, 11], [15, 16, 17], [21, 0, 1]],
    ],
    (7, 2, 3): [[[0, 1], [6, 0]], [[2, 3], [1, 2]], [[4, 5], [3, 4]]],
    (5, 4, 4): [[[0, 1, 2, 3]], [[4, 0, 1, 2]], [[3, 4, 0, 1]], [[2, 3, 4, 0]]],
    (2, 3, 2): [[[0, 1, 0]], [[1, 0, 1]]],
    (1, 2, 4): [[[0, 0]]] * 4,
    (0, 2, 2): [[], []],
}
UNEVEN: Table = {
    (24, 3, 2): EVEN[24, 3, 2],
    (10, 2, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7]]],
    (11, 2, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]],
    (9, 2, 2): [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]],
    (13, 3, 2): [[[0, 1, 2], [6, 7, 8], [12]], [[3, 4, 5], [9, 10, 11]]],
    (20, 3, 2): [
        [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19]],
        [[3, 4, 5], [9, 10, 11], [15, 16, 17]],
    ],
    (22, 3, 2): [
        [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 20]],
        [[3, 4, 5], [9, 10, 11], [15, 16, 17], [21]],
    ],
    (7, 2, 3): [[[0, 1], [6]], [[2, 3]], [[4, 5]]],
    (5, 4, 4): [[[0, 1, 2, 3]], [[4]], [], []],
    (2, 3, 2): [[[0, 1]], []],
    (1, 2, 4): [[[0]], [], [], []],
    (0, 2, 2): [[], []],
}
DROPPED = {
    (24, 3, 2): 4, (10, 2, 2): 2, (11, 2, 2): 2, (9, 2, 2): 2, (13, 3, 2): 2, (20, 3, 2): 3, (22, 3, 2): 3, (7, 2, 3): 1,
    (5, 4, 4): 0, (2, 3, 2): 0, (1, 2, 4): 0, (0, 2, 2): 0,
}  # fmt: skip
SPLIT: Table = {
    (10, 4, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]],
    (9, 4, 2): [[[0, 1], [4, 5], [8, 0]], [[2, 3], [6, 7], [1, 2]]],
    (11, 4, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]]],
    (3, 4, 2): [[[0, 1]], [[2, 0]]],
    (1, 4, 4): [[[0]]] * 4,
    (13, 6, 3): [[[0, 1], [6, 7], [12, 0]], [[2, 3], [8, 9], [1, 2]], [[4, 5], [10, 11], [3, 4]]],
}
SPLIT_UNEVEN: Table = {
    (10, 4, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7]]],
    (9, 4, 2): [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]],
    (11, 4, 2): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]],
    (3, 4, 2): [[[0, 1]], [[2]]],
    (1, 4, 4): [[[0]], [], [], []],
    (13, 6, 3): [[[0, 1], [6, 7], [12]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]],
}
DISPATCHED: Table = {
    (10, 2, 2): [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]],
    (9, 2, 2): [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]],
    (3, 4, 2): [[[0, 1]], [[2, 0]]],
    (9, 2, 3): [[[0, 1], [6]], [[2, 3], [7]], [[4, 5], [8]]],
    (1, 2, 3): [[[0]], [[0]], [[0]]],
    (0, 2, 2): [[], []],
}
VARIABLE = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]


def shares(batches: Any, ranks: int, **rules: Any) -> list[BatchShare]:
    return [BatchShare(batches, num_replicas=ranks, rank=rank, **rules) for rank in range(ranks)]


def dealt(n: int, size: int, ranks: int, drop_last: bool = False, **rules: Any) -> list[list[list[int]]]:
    """What each rank gets of n samples; its length is what it said before."""
    got = []
    for share in shares(BatchSampler(range(n), size, drop_last), ranks, **rules):
        said = len(share)
        got.append(list(share))
        assert said == len(got[-1])
    return got


@pytest.mark.parametrize(("case", "expected"), EVEN.items(), ids=str)
def test_even_batches_are_filled_up_from_the_start_of_the_epoch(case: tuple[int, int, int], expected: Any) -> None:
    assert dealt(*case) == expected


@pytest.mark.parametrize(("case", "expected"), UNEVEN.items(), ids=str)
def test_without_even_batches_each_rank_gets_what_there_is(case: tuple[int, int, int], expected: Any) -> None:
    assert dealt(*case, even_batches=False) == expected


@pytest.mark.parametrize(("case", "steps"), DROPPED.items(), ids=str)
@pytest.mark.parametrize("even", [True, False])
def test_an_incomplete_round_is_dropped_for_all(case: tuple[int, int, int], steps: int, even: bool) -> None:
    assert dealt(*case, drop_last=True, even_batches=even) == [own[:steps] for own in EVEN[case]]


@pytest.mark.parametrize(("case", "expected"), SPLIT.items(), ids=str)
def test_split_batches_are_cut_among_the_ranks(case: tuple[int, int, int], expected: Any) -> None:
    assert dealt(*case, split_batches=True) == expected
    full = case[0] // case[1]
    assert dealt(*case, split_batches=True, drop_last=True) == [own[:full] for own in expected]


@pytest.mark.parametrize(("case", "expected"), SPLIT_UNEVEN.items(), ids=str)
def test_uneven_split_batches_leave_some_ranks_without_one_and_say_so(case: tuple[int, int, int], expected: Any) -> None:
    assert dealt(*case, split_batches=True, even_batches=False) == expected


@pytest.mark.parametrize(("case", "expected"), DISPATCHED.items(), ids=str)
def test_dispatched_last_steps_are_as_small_as_can_be_and_never_empty(case: tuple[int, int, int], expected: Any) -> None:
    n, size, ranks = case
    turns = [parts for parts, _ in shares(BatchSampler(range(n), size, False), ranks)[0].spread()]
    assert [[list(turn[rank]) for turn in turns] for rank in range(ranks)] == expected
    assert len(turns) == len(shares(BatchSampler(range(n), size, False), ranks)[0])


def test_batches_of_sizes_of_their_own_come_again_as_a_whole_and_are_told() -> None:
    first, second = (list(share.dealt()) for share in shares(VARIABLE, 2))
    assert [batch for batch, _ in first] == [VARIABLE[0], VARIABLE[2]]
    assert [batch for batch, _ in second] == [VARIABLE[1], VARIABLE[0]]
    assert first[-1][1] == second[-1][1] == Tally((4, 3), (4, 0))
    assert [list(share) for share in shares(VARIABLE, 2, even_batches=False)] == [[VARIABLE[0], VARIABLE[2]], [VARIABLE[1]]]
    assert [list(share) for share in shares(VARIABLE[:1], 3)] == [[VARIABLE[0]]] * 3
    seven = [[0], [1, 2], [3, 4, 5], [6], [7, 8], [9, 10, 11], [12, 13]]
    assert [list(share)[-1] for share in shares(seven, 3)] == [[12, 13], [0], [1, 2]]


class Dropping:
    drop_last = True

    def __iter__(self) -> Any:
        return iter(VARIABLE)

    def __len__(self) -> int:
        return len(VARIABLE)


def test_a_batch_sampler_that_drops_its_last_loses_the_incomplete_round() -> None:
    assert [list(share) for share in shares(Dropping(), 2)] == [[VARIABLE[0]], [VARIABLE[1]]]
    assert [len(share) for share in shares(Dropping(), 2)] == [1, 1]


def test_short_batches_in_the_middle_are_dealt_like_any() -> None:
    class Sized(list[list[int]]):
        batch_size = 2

    first, second = shares(Sized([[0, 1], [2], [3, 4], [5, 6]]), 2)
    assert (list(first), list(second)) == ([[0, 1], [3, 4]], [[2], [5, 6]])
    assert next(second.dealt())[1] == Tally((2, 1), (2, 1))


@pytest.mark.parametrize(("batches", "size"), [(VARIABLE, None), (BatchSampler(range(9), 3, False), 3)])
def test_what_cannot_be_cut_is_refused(batches: Any, size: int | None) -> None:
    with pytest.raises(DataError, match="split_batches" if size is None else "round multiple"):
        BatchShare(batches, num_replicas=2, rank=0, split_batches=True)


STREAMS: dict[tuple[int, int, int, bool], list[list[int]]] = {
    (10, 2, 2, False): [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]],
    (9, 2, 2, False): [[0, 1, 4, 5, 8, 0], [2, 3, 6, 7, 1, 2]],
    (10, 2, 2, True): [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]],
    (3, 4, 2, False): [[0, 1, 2, 0], [1, 2, 0, 1]],
}


@pytest.mark.parametrize(("case", "expected"), STREAMS.items(), ids=str)
def test_streams_are_dealt_in_consecutive_parts_of_every_step(case: tuple[int, int, int, bool], expected: Any) -> None:
    n, size, ranks, split = case
    own = [StreamShare(range(n), size, num_replicas=ranks, rank=rank, split_batches=split) for rank in range(ranks)]
    assert [list(share) for share in own] == expected
    assert [len(share) for share in own] == [len(samples) for samples in expected]
    assert [len(list(StreamShare(range(9), 2, num_replicas=2, rank=rank, drop_last=True))) for rank in range(2)] == [4, 4]
    uneven = [StreamShare(range(n), size, num_replicas=ranks, rank=rank, even_batches=False) for rank in range(ranks)]
    assert sorted(sample for share in uneven for sample in share) == list(range(n))
    assert [len(share) for share in uneven] == [len(list(share)) for share in uneven]


SIZES = {"n": st.integers(0, 60), "size": st.integers(1, 6), "ranks": st.integers(1, 8)}


@settings(max_examples=400, deadline=None)
@given(**SIZES, even=st.booleans(), drop_last=st.booleans(), split=st.booleans())
def test_each_sample_comes_once_in_order_and_repeats_are_exactly_those_declared(
    n: int, size: int, ranks: int, even: bool, drop_last: bool, split: bool
) -> None:
    size = size * ranks if split else size
    full = size if split else size * ranks
    own = shares(BatchSampler(range(n), size, drop_last), ranks, even_batches=even, split_batches=split)
    got = [list(share.dealt()) for share in own]
    assert [len(share) for share in own] == [len(steps) for steps in got]
    steps = -(-n // full) if not drop_last else n // full
    real: list[int] = []
    for number in range(steps):
        tally = got[0][number][1]
        for rank in range(ranks):
            batch = got[rank][number][0] if number < len(got[rank]) else []
            assert tally.sizes[rank] == len(batch)
            real += batch[: tally.real[rank]]
            assert set(batch[tally.real[rank] :]) <= set(range(min(n, full)))
    assert real == list(range(min(steps * full, n)))
    if even or drop_last:
        assert all(len(mine) == steps for mine in got)
        assert ranks == 1 or all(tally.sizes == (full // ranks,) * ranks for mine in got for _, tally in mine)
    else:
        assert max(len(mine) for mine in got) - min(len(mine) for mine in got) <= 1


@settings(max_examples=200, deadline=None)
@given(**SIZES, start=st.integers(0, 70), even=st.booleans(), drop_last=st.booleans())
def test_from_any_place_on_the_rest_comes_once(n: int, size: int, ranks: int, start: int, even: bool, drop_last: bool) -> None:
    own = shares(BatchSampler(range(n), size, drop_last), ranks, even_batches=even)
    seen: Counter[int] = Counter()
    for share in own:
        share.begin_at(start)
        said = share.left(start)
        mine = list(share.dealt())
        assert len(mine) == said
        seen.update(sample for batch, tally in mine for sample in batch[: tally.real[share.rank]])
        assert len(list(share)) == len(share)
    rest = range(start, n)
    whole = len(rest) // (size * ranks) * size * ranks
    assert seen == Counter(rest[:whole] if drop_last else rest)


@settings(max_examples=200, deadline=None)
@given(**SIZES, even=st.booleans())
def test_spread_steps_have_equal_parts(n: int, size: int, ranks: int, even: bool) -> None:
    full = size * ranks
    head, rest = begin(range(n), full, 0)
    real = []
    for turn in spread(chunks(rest, full), head, ranks, even=even):
        assert turn.tally.sizes == tuple(map(len, turn.parts))
        assert not even or len(set(turn.tally.sizes)) == 1
        assert sum(turn.tally.sizes) - sum(turn.tally.real) < ranks
        real += [entry for part, count in zip(turn.parts, turn.tally.real, strict=True) for entry in part[:count]]
    assert real == list(range(n))
