"""On real ranks: one order for all, streams that share themselves out, rank 0 reading for all, and no sample lost by a kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.data import on_ranks
from tests.ranks import run

LIVES = (2, 1, 2)


def epochs(ranks: list[list[list[list[int]]]]) -> list[list[int]]:
    """All that the ranks got, epoch by epoch."""
    return [sorted(sample for own in ranks for batch in own[epoch] for sample in batch) for epoch in range(2)]


@pytest.mark.parametrize("rules", [{}, {"use_seedable_sampler": True}, {"dispatch_batches": True}], ids=str)
def test_ranks_with_different_generators_share_one_order(rules: dict[str, Any]) -> None:
    ranks = run(2, on_ranks.batches, "numbers", 12, 2, {}, rules)
    assert epochs(ranks) == [list(range(12))] * 2
    assert ranks[0][0] != ranks[0][1]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, {}),
        ({}, {"dispatch_batches": False}),
        ({"num_workers": 2, "persistent_workers": True}, {"dispatch_batches": False}),
    ],
    ids=str,
)
def test_a_stream_that_looks_at_its_rank_is_not_shared_out_again(options: dict[str, Any], rules: dict[str, Any]) -> None:
    ranks = run(2, on_ranks.batches, "looking", 8, 2, options, rules)
    if not options:
        assert ranks == [[[[0, 2], [4, 6]]] * 2, [[[1, 3], [5, 7]]] * 2]
    assert epochs(ranks) == [list(range(8))] * 2


@pytest.mark.parametrize("kind", ["stream", "whole"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_all_ranks_read_alike_is_dealt_once(kind: str, workers: int) -> None:
    ranks = run(2, on_ranks.batches, kind, 16, 2, {"num_workers": workers}, {"dispatch_batches": False})
    assert epochs(ranks) == [list(range(16))] * 2


def test_ranks_that_read_different_orders_are_refused_and_rank_0_may_read_for_all() -> None:
    for told in run(2, on_ranks.refused, "disagreeing"):
        assert told.startswith("[] DataError: dataset='Disagreeing': the ranks read different samples")
        assert "rank_aware" in told
    assert epochs(run(2, on_ranks.batches, "disagreeing", 12, 2, {}, {})) == [list(range(12))] * 2


CASES: list[Any] = [
    (2, ("stream", 10, 2, {}, {}), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]], (1, 1), 2),
    (2, ("stream", 9, 2, {"num_workers": 2}, {}), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]], (1, 0), 1),
    (2, ("numbers", 9, 2, {}, {}), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]], (1, 0), 1),
    (2, ("stream", 10, 2, {"drop_last": True}, {}), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]], (2, 2), 0),
    (2, ("numbers", 9, 2, {"drop_last": True}, {}), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]], (2, 2), 0),
    (2, ("stream", 9, 4, {}, {"split_batches": True}), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]], (1, 0), 1),
    (2, ("numbers", 9, 4, {}, {"split_batches": True}), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]], (1, 0), 1),
    (2, ("stream", 3, 4, {}, {}), [[[0, 1]], [[2, 0]]], (2, 1), 3),
    (2, ("stream", 0, 4, {}, {}), [[], []], None, -1),
    (3, ("numbers", 9, 2, {}, {}), [[[0, 1], [6]], [[2, 3], [7]], [[4, 5], [8]]], (1, 1, 1), 3),
    (3, ("stream", 1, 2, {}, {}), [[[0]], [[0]], [[0]]], (1, 0, 0), 1),
]


@pytest.mark.parametrize("size", [2, 3])
def test_rank_0_deals_what_it_reads_and_no_rank_gets_an_empty_batch(size: int) -> None:
    cases = [case for case in CASES if case[0] == size]
    ranks = run(size, on_ranks.dispatched, [case[1] for case in cases])
    for number, (_, _, expected, real, remainder) in enumerate(cases):
        for rank in range(size):
            got = ranks[rank][number]
            assert [batch for batch, *_ in got] == expected[rank]
            if got:
                assert got[-1][1:] == (real, remainder, True)
                assert not any(last for *_, last in got[:-1])


def test_each_rank_is_sent_its_own_part_alone_whatever_the_shapes() -> None:
    first, second = run(2, on_ranks.traffic)
    assert (first[0], second[0]) == (list("0145"), list("2367"))
    steps, size = 4, first[2]
    assert steps * size < first[1] < steps * size * 1.02


def test_a_read_that_fails_on_rank_0_ends_all_ranks_with_its_reason() -> None:
    first, second = run(2, on_ranks.refused, "failing")
    assert first == "[0, 1, 4, 5] OSError: disk is gone"
    assert second.startswith(
        "[2, 3, 6, 7] DataError: dispatch_batches=True: rank 0 could not read the next batch (OSError: disk is"
    )


def test_all_ranks_may_leave_a_dispatched_epoch() -> None:
    assert run(2, on_ranks.left_early) == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]]


def test_generators_follow_rank_0_where_asked() -> None:
    first, second = run(2, on_ranks.synchronized)
    assert [one == other for one, other in zip(first, second, strict=True)] == [True, True, False, True]


@pytest.mark.parametrize("way", ["shuffled", "batches", "stream", "dispatched"])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_comes_once_an_epoch_across_kill_and_resume_at_other_world_sizes(
    way: str, workers: int, tmp_path: Path
) -> None:
    ledger: dict[str, Counter[int]] = {}
    for turn, size in enumerate(LIVES):
        steps = 3 if turn < len(LIVES) - 1 else 10**6
        for own in run(size, on_ranks.train, str(tmp_path), turn, steps, way, workers):
            for epoch, samples in own.items():
                ledger.setdefault(epoch, Counter()).update(samples)
    assert ledger == {str(epoch): Counter(range(37)) for epoch in range(2)}
