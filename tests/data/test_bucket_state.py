"""Stopping within an epoch and going on: at the same shape exactly, at another with every sample not yet consumed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from restoke.data import bucket_plan
from restoke.data.bucketed import BucketedDistributedSampler
from restoke.errors import DataError
from tests.data.bucket_cases import Case, cases, steps_of

QUICK = settings(max_examples=150, deadline=None)
CASE = Case(203, 4, 3, 2, seed=11)


def stopped(case: Case, epoch: int, batches: int) -> dict[str, Any]:
    """The state after some batches, as a checkpoint's JSON gives it back; all replicas say the same."""
    states = []
    for sampler in case.replicas():
        sampler.set_epoch(epoch)
        sampler.advance(batches)
        states.append(sampler.state_dict())
    assert all(state == states[0] for state in states)
    return json.loads(json.dumps(states[0]))


def resumed(case: Case, state: dict[str, Any]) -> list[BucketedDistributedSampler]:
    samplers = case.replicas()
    for sampler in samplers:
        sampler.load_state_dict(state)
    return samplers


@QUICK
@given(cases(), st.integers(0, 99), st.data())
def test_at_the_same_shape_the_sequence_goes_on_exactly(case: Case, epoch: int, data: st.DataObject) -> None:
    whole = case.replicas()
    for sampler in whole:
        sampler.set_epoch(epoch)
    expected = steps_of(whole)
    batches = data.draw(st.integers(0, len(expected)))
    samplers = resumed(case, stopped(case, epoch, batches))
    assert (steps_of(samplers) == expected[batches:]).all()
    assert {sampler.position for sampler in samplers} == {batches * case.slice_size}
    assert {(sampler.padded, sampler.dropped) for sampler in samplers} == {(whole[0].padded, whole[0].dropped)}


@QUICK
@given(cases(), st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=3), st.data())
def test_at_other_shapes_each_sample_not_yet_consumed_comes_once(
    case: Case, shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    consumed: set[int] = set()
    steps, samplers = steps_of(case.replicas()), case.replicas()
    for batch_size, num_replicas in shapes:
        batches = data.draw(st.integers(0, len(steps)))
        consumed |= set(steps[:batches].ravel().tolist())
        for sampler in samplers:
            sampler.advance(batches)
        case = evolve(case, batch_size=batch_size, num_replicas=num_replicas)
        if not case.possible:
            return
        state = samplers[0].state_dict()
        samplers = resumed(case, state)
        steps = steps_of(samplers)
        began = [slice_size for slice_size, taken in state["legs"] if taken]
        if began[-1:] != [case.slice_size]:  # else it goes on exactly, with the padding that was declared before
            check_rest(case, samplers[0], steps, consumed)


def check_rest(case: Case, sampler: BucketedDistributedSampler, steps: np.ndarray, consumed: set[int]) -> None:
    drawn, times = np.unique(steps, return_counts=True)
    assert consumed.isdisjoint(drawn.tolist())
    assert len(drawn) + sampler.dropped == case.samples - len(consumed)
    assert (times - 1).sum() == sampler.padded
    bucket_of = {index: number for number, bucket in enumerate(sampler.bucket_idx) for index in bucket.tolist()}
    left = np.bincount([bucket_of[index] for index in set(range(case.samples)) - consumed], minlength=case.buckets)
    spare = np.array([left.sum()]) if case.allow_bucket_overlap else left
    assert sampler.padded == (0 if case.drop_last else (-spare % case.slice_size).sum())
    if not case.allow_bucket_overlap:
        assert all(len({bucket_of[index] for index in step.ravel().tolist()}) == 1 for step in steps)


@pytest.mark.parametrize(("batch_size", "num_replicas"), [(6, 1), (2, 3), (1, 6)])
def test_the_same_slices_go_on_when_other_replicas_share_them(batch_size: int, num_replicas: int) -> None:
    expected = steps_of(CASE.replicas())[5:].swapaxes(1, 2).reshape(-1, 6)
    other = evolve(CASE, batch_size=batch_size, num_replicas=num_replicas)
    assert (steps_of(resumed(other, stopped(CASE, 0, 5))).swapaxes(1, 2).reshape(-1, 6) == expected).all()


def test_a_shape_that_was_tried_and_left_at_once_changes_nothing() -> None:
    state = stopped(CASE, 0, 5)
    between = resumed(evolve(CASE, num_replicas=1), state)[0].state_dict()
    assert (steps_of(resumed(CASE, between)) == steps_of(CASE.replicas())[5:]).all()


def test_what_was_cut_anew_is_shuffled_anew_and_alike_each_time() -> None:
    other = evolve(CASE, num_replicas=1)
    state = stopped(CASE, 0, 5)
    first, second = resumed(other, state)[0], resumed(other, state)[0]
    assert list(first) == list(second)
    lengths = CASE.lengths[steps_of([first])].min(axis=(1, 2))
    assert (np.diff(lengths) < 0).sum() > 5


def test_samples_that_would_have_been_dropped_are_still_there_at_a_smaller_shape() -> None:
    case = Case(100, 1, 8, 4, drop_last=True)
    sampler = resumed(evolve(case, num_replicas=1), stopped(case, 0, 3))[0]
    assert (len(sampler), sampler.dropped) == (0, 4)
    sampler = resumed(evolve(case, num_replicas=1, batch_size=2), stopped(case, 0, 3))[0]
    assert (len(sampler), sampler.dropped) == (4, 0)


def test_without_shuffling_it_resumes_as_well() -> None:
    case = evolve(CASE, shuffle=False, allow_bucket_overlap=True)
    expected = steps_of(case.replicas())
    assert (steps_of(resumed(case, stopped(case, 3, 7))) == expected[7:]).all()


def test_the_length_is_that_of_the_iteration_whatever_was_consumed_of_it() -> None:
    sampler = CASE.sampler()
    sampler.advance(4)
    assert len(sampler) == len(list(sampler)) == sampler.rounded_num_samples_per_replica
    assert len(resumed(CASE, sampler.state_dict())[0]) == len(sampler) - 4 * 3


def test_the_same_epoch_keeps_a_restored_position_and_a_new_one_begins_at_its_start() -> None:
    sampler = resumed(CASE, stopped(CASE, 2, 5))[0]
    assert (sampler.epoch, sampler.position) == (2, 30)
    rest = list(sampler)
    for batches in (0, 3):  # in the second round it was iterated over in part: the iteration begins again
        sampler.advance(batches)
        sampler.set_epoch(2)
        assert (sampler.position, list(sampler)) == (30, rest)
    sampler.set_epoch(3)
    fresh = CASE.sampler()
    fresh.set_epoch(3)
    assert (sampler.position, len(sampler), list(sampler)) == (0, len(fresh), list(fresh))


def test_a_new_epoch_after_one_that_was_cut_anew_is_whole() -> None:
    sampler = resumed(evolve(CASE, num_replicas=3), stopped(CASE, 2, 5))[0]
    sampler.set_epoch(3)
    fresh = evolve(CASE, num_replicas=3).sampler()
    fresh.set_epoch(3)
    assert list(sampler) == list(fresh)
    assert (sampler.padded, sampler.dropped) == (fresh.padded, fresh.dropped)


def test_nothing_is_left_at_the_end_of_an_epoch() -> None:
    for drop_last, overlap in ((False, False), (False, True), (True, False), (True, True)):
        case = evolve(CASE, drop_last=drop_last, allow_bucket_overlap=overlap, samples=204, buckets=1)
        state = stopped(case, 0, len(case.sampler()) // 3)
        for shape in ({}, {"num_replicas": 3}):
            sampler = resumed(evolve(case, **shape), state)[0]
            assert (len(sampler), list(sampler), sampler.padded, sampler.dropped) == (0, [], 0, 0)


@pytest.mark.parametrize("batches", [-1, 36, 1.0, True])
def test_no_more_than_the_epoch_can_be_consumed(batches: object) -> None:
    sampler = CASE.sampler()
    assert len(sampler) == 36 * 3
    sampler.advance(1)
    with pytest.raises(DataError, match="advance="):
        sampler.advance(batches)  # type: ignore[arg-type]
    sampler.advance(35)


@pytest.mark.parametrize("epoch", [-1, 1.5, None])
def test_an_epoch_is_a_number_from_zero(epoch: object) -> None:
    with pytest.raises(DataError, match="epoch="):
        CASE.sampler().set_epoch(epoch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("buckets", 5), ("allow_bucket_overlap", True), ("drop_last", True), ("shuffle", False), ("seed", 12), ("samples", 204)],
)
def test_a_state_of_other_settings_is_refused_and_named(setting: str, value: object) -> None:
    state = stopped(evolve(CASE, **{setting: value}), 0, 3)
    with pytest.raises(DataError) as caught:
        CASE.sampler().load_state_dict(state)
    (problem,) = caught.value.problems
    assert (problem.axis, problem.got) == (setting, getattr(CASE, setting))
    assert repr(value) in problem.why


def test_every_other_setting_is_named_at_once() -> None:
    state = stopped(evolve(CASE, seed=1, buckets=2), 0, 3)
    with pytest.raises(DataError, match=r"2 problems(.|\n)*buckets=4(.|\n)*seed=11"):
        CASE.sampler().load_state_dict(state)


def test_a_state_of_other_lengths_is_refused() -> None:
    other = CASE.lengths.copy()
    other[[0, 1]] = other[[1, 0]]
    sampler = BucketedDistributedSampler(None, 4, 3, lengths=other, num_replicas=2, rank=0, seed=11)
    with pytest.raises(DataError, match="the samples are in another order"):
        sampler.load_state_dict(stopped(CASE, 0, 3))


def test_a_shuffle_that_gives_another_order_than_it_did_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = stopped(CASE, 0, 3)
    monkeypatch.setattr(bucket_plan, "_shuffled", lambda sizes, _: np.arange(sizes.sum(), dtype=np.int32))
    with pytest.raises(DataError, match="a NumPy release that shuffles otherwise"):
        CASE.sampler().load_state_dict(state)


def test_the_way_in_which_lengths_were_given_does_not_matter() -> None:
    ordered = np.argsort(CASE.lengths)
    for named in ({"sorted_idx": ordered}, {"lengths": CASE.lengths.astype(float)}, {"sorted_idx": ordered[::-1].copy()[::-1]}):
        BucketedDistributedSampler(None, 4, 3, **named, num_replicas=2, rank=0, seed=11).load_state_dict(stopped(CASE, 0, 3))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"epoch": -1}, "epochs count from 0"),
        ({"epoch": "1"}, "not a whole number"),
        ({"legs": [[6, 17]], "position": 17}, "whole slices"),
        ({"legs": [[0, 0]], "position": 0}, "whole slices"),
        ({"legs": [[6, -6]], "position": -6}, "whole slices"),
        ({"legs": [[6, 18.0]]}, "no pairs"),
        ({"legs": [6, 18]}, "no pairs"),
        ({"legs": None}, "no pairs"),
        ({"position": 24}, "do not make it up"),
        ({"legs": [[6, 600]], "position": 600}, "beyond the end"),
        ({"legs": [[3, 300], [6, 18]], "position": 318}, "only 204 entries were left"),
        ({"fingerprint": "0"}, "another order"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage: dict[str, Any], why: str) -> None:
    sampler = resumed(CASE, stopped(CASE, 1, 2))[0]
    before = sampler.state_dict(), list(sampler)
    with pytest.raises(DataError, match=why):
        sampler.load_state_dict({**stopped(CASE, 0, 3), **damage})
    assert (sampler.state_dict(), list(sampler)) == before


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(DataError, match="it lacks buckets, fingerprint"):
        CASE.sampler().load_state_dict({key: value for key, value in stopped(CASE, 0, 3).items() if key[0] not in "bf"})
