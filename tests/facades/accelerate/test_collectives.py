"""Collectives on two and three ranks: what they give, and what they refuse on every rank."""

from __future__ import annotations

import pytest

from tests import ranks
from tests.facades.accelerate import collective_work as work
from tests.facades.accelerate.close import close


def test_collectives_over_nested_tensors_and_objects() -> None:
    for told in ranks.run(2, work.gathered):
        assert told[0] == {"a": [0, 1, 10, 11], "b": [[0.0, 1.0], [True, False]]}
        assert told[1] == [0, "x", 1, "x"]
        assert len(told[2]) == 3
        assert told[3][0][-1] == 1.0
        assert told[4:7] == [[3.0], [1.5], [2]]
        assert told[8:] == [[1.5], [1.0], [0.0]]
    zero, one = ranks.run(2, work.gathered)
    assert zero[2] == [[1.0], [1.0], [0.0]]
    assert zero[3] == [[7.0, 1.0, 1.0]]
    assert (zero[7], one[7]) == ([1.0], [2.0])  # "none" reduces nothing: Accelerate summed


def test_a_mismatch_is_an_error_on_every_rank_that_names_the_rank_and_leaves_the_group_in_order() -> None:
    for told in ranks.run(2, work.mismatched):
        for line in told[:3]:
            assert "DistributedOperationException" in line
            assert "rank 0" in line
            assert "rank 1" in line
        assert "[3]" in told[0]
        assert "[4]" in told[0]
        assert "float64" in told[1]
        assert "'product'" in told[3]
        assert "gather" in told[4]
        assert "float" in told[4]
        assert "a list" in told[5]
        assert "a list" in told[6]
        assert "reduce(" in told[7]
        assert "gather(" in told[7]
        assert told[8] == "[1.0, 1.0]"


def test_of_three_ranks_the_odd_one_is_named() -> None:
    for told in ranks.run(3, work.mismatched):
        assert "rank 0 calls it with something else" in told[2]


CASES = [
    (mode, count, batch, kind)
    for mode in work.MODES
    for count, batch in ((9, 2), (10, 4), (3, 4), (24, 4))
    for kind in ("indexed", "stream")
    if not (mode == "uneven" and kind == "stream")
]


@pytest.mark.parametrize("size", [2, 3])
def test_an_evaluation_sees_every_sample_once_in_every_mode(size: int) -> None:
    for mode, count, batch, kind in CASES:
        if mode == "split" and batch % size:
            continue
        answers = ranks.run(size, work.evaluated, mode, count, batch, kind, timeout=30)
        if mode == "uneven" and any(len(told) == 1 for told in answers):
            assert all(told[0].startswith("even_batches=False") for told in answers if any(told))
            continue
        for told in answers:
            tensors, objects, classic = told
            assert sorted(tensors) == list(range(count)), (mode, count, batch, kind)
            assert sorted(objects) == list(range(count)), (mode, count, batch, kind)
            if mode != "uneven":
                assert sorted(classic) == list(range(count)), (mode, count, batch, kind)


def test_a_mean_is_not_gathered_as_if_it_were_samples() -> None:
    for told in ranks.run(2, work.pre_averaged):
        for line in told[:4]:
            assert line.startswith("DataError"), line
        assert "reduce(value, 'mean')" in told[0]
        assert "shape [1]" in told[1]
        assert told[4] == "1"  # of the last step, one is real: 9 samples in steps of 4


def test_any_rank_pulls_the_trigger_for_all() -> None:
    assert ranks.run(2, work.triggered) == [[False, True, False]] * 2


def test_uneven_inputs_are_joined_on_the_cpu() -> None:
    (first, weights), (second, same) = ranks.run(2, work.joined)
    assert (first, second) == (2, 1)
    assert close(weights, same)


def test_what_is_split_between_processes_does_not_change() -> None:
    given = {"a": [1, 2, 3], "b": (1, 2, 3)}
    zero, one = ranks.run(2, work.shared)
    assert zero == [{"a": [1, 2], "b": (1, 2)}, [1], [0, 1, 2], given]
    assert one == [{"a": [3, 3], "b": (3, 3)}, [], [3, 4, 4], given]


def test_process_control() -> None:
    zero, one = ranks.run(2, work.controlled)
    assert zero == ["ran", "ran", None, None, "WorldError", [True, True, False], 2, "MULTI_CPU"]
    assert one == [None, None, "ran", "ran", "WorldError", [False, False, True], 2, "MULTI_CPU"]


def test_all_ranks_find_the_same_batch_size() -> None:
    assert ranks.run(2, work.executable) == [[2, 10, 5, 2]] * 2


def test_seeds_are_alike_or_each_ranks_own() -> None:
    zero, one = ranks.run(2, work.seeded)
    assert zero[0] == one[0]
    assert zero[1] != one[1]


def test_duplicates_are_dropped_after_a_skip_too() -> None:
    for skipped, whole in ranks.run(2, work.evaluated_after_a_skip, 9):
        assert sorted(skipped) == list(range(4, 9))
        assert sorted(whole) == list(range(9))
