"""One epoch of the bucketed sampler over all replicas: what it draws, what it repeats, what it leaves out."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restoke.data.bucketed import CHUNK, BucketedDistributedSampler
from restoke.errors import DataError
from tests.data.bucket_cases import Case, cases, check_epoch, steps_of

QUICK = settings(max_examples=150, deadline=None)


@QUICK
@given(cases(), st.integers(0, 10_000))
def test_an_epoch_draws_each_sample_once_and_pads_or_drops_as_declared(case: Case, epoch: int) -> None:
    check_epoch(case, epoch)


def test_three_thousand_random_configurations_all_work() -> None:
    rng = np.random.default_rng(7)
    worked = 0
    for _ in range(3000):
        samples = int(rng.integers(1, 250))
        shape = (int(rng.integers(1, samples + 1)), int(rng.integers(1, 17)), int(rng.integers(1, 5)))
        case = Case(samples, *shape, *(bool(bit) for bit in rng.integers(0, 2, 3)), seed=int(rng.integers(0, 100)))
        if case.possible:
            check_epoch(case, int(rng.integers(0, 5)))
            worked += 1
        else:
            with pytest.raises(DataError, match="no batch would be left"):
                case.sampler()
    assert worked > 2000


@QUICK
@given(cases(), st.integers(0, 1000))
def test_an_epoch_is_the_same_whenever_and_wherever_it_is_drawn(case: Case, epoch: int) -> None:
    first, other = case.sampler(), case.sampler()
    other.set_epoch(epoch + 1)
    list(other)
    for sampler in (first, other):
        sampler.set_epoch(epoch)
    assert list(first) == list(first) == list(other)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_and_seeds_differ_when_shuffled_and_do_not_when_not(overlap: bool, drop_last: bool) -> None:
    for shuffle, different in ((True, 4), (False, 1)):
        seen = set()
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
            sampler = Case(203, 3, 4, 2, overlap, drop_last, shuffle, seed).sampler()
            sampler.set_epoch(epoch)
            seen.add(tuple(sampler))
        assert len(seen) == different


def test_seed_and_epoch_are_not_summed() -> None:
    one, other = Case(64, 2, 4, 1, seed=3).sampler(), Case(64, 2, 4, 1, seed=4).sampler()
    one.set_epoch(1)
    assert list(one) != list(other)


def test_seeds_below_zero_are_seeds_of_their_own() -> None:
    assert list(Case(64, 2, 4, 1, seed=-3).sampler()) != list(Case(64, 2, 4, 1, seed=3).sampler())


def test_the_streams_of_an_epoch_are_independent() -> None:
    sampler = Case(64, 2, 4, 1).sampler()
    draws = {sampler._generator(epoch, stream).random() for epoch in range(4) for stream in range(4)}
    assert len(draws) == 16


def test_the_order_inside_buckets_and_the_order_of_batches_are_both_shuffled() -> None:
    steps = steps_of(Case(64, 4, 4, 2).replicas())
    bucket = np.argsort(np.argsort(Case(64, 4, 4, 2).lengths))[steps].reshape(8, 8) // 16
    assert (np.diff(bucket[:, 0]) < 0).any()
    places = np.argsort(np.argsort(Case(64, 4, 4, 2).lengths))[steps].reshape(8, 8)
    assert any(row.max() - row.min() > 7 for row in places)


@pytest.mark.parametrize("overlap", [False, True])
def test_without_shuffling_the_slices_ascend_in_length(overlap: bool) -> None:
    case = Case(1003, 4, 8, 4, overlap, shuffle=False)
    first = case.lengths[steps_of(case.replicas())][:, 0, 0]
    assert (np.diff(first) > 0).all()


def test_shared_slices_hold_leftovers_of_neighbouring_lengths() -> None:
    case = Case(403, 40, 4, 2, allow_bucket_overlap=True)
    places = np.sort(np.argsort(np.argsort(case.lengths))[steps_of(case.replicas())].reshape(-1, 8), axis=1)
    mixed = places[places[:, 0] // 10 != places[:, -1] // 10]  # 10 or 11 samples a bucket, 8 a slice
    assert len(mixed) >= 10
    assert (mixed[:, -1] - mixed[:, 0] < 60).all()  # 2 or 3 leftovers a bucket: 8 of them span 5 buckets at most


def test_dropping_leaves_no_sample_out_of_every_epoch() -> None:
    for overlap in (False, True):
        sampler = Case(59, 3, 8, 1, overlap, drop_last=True).sampler()
        seen: set[int] = set()
        dropped: set[int] = set()
        for epoch in range(300):
            sampler.set_epoch(epoch)
            drawn = set(sampler)
            seen |= drawn
            dropped |= set(range(59)) - drawn
        assert seen == dropped == set(range(59))  # and each bucket bears its part


def test_indices_and_lengths_give_the_same_order() -> None:
    lengths = [7, 3, 3, 9, 1, 3, 2, 8]
    ordered = np.argsort(lengths, kind="stable")
    drawn = [
        list(BucketedDistributedSampler(None, 2, 2, *given, num_replicas=1, rank=0, **named))
        for given, named in (
            ((ordered,), {}),
            ((ordered.tolist(),), {}),
            ((torch.from_numpy(ordered),), {}),
            ((), {"lengths": lengths}),
            ((), {"lengths": torch.tensor(lengths)}),
            ((), {"lengths": np.array(lengths, dtype=np.float32)}),
        )
    ]
    assert all(indices == drawn[0] for indices in drawn)


def test_stokes_positional_order_and_attributes_stay() -> None:
    ordered = np.argsort(Case(100, 1, 1, 1).lengths)
    sampler = BucketedDistributedSampler(range(100), 3, 4, ordered, "ddp", True, 2, 1, False, 5, True, 0)
    assert (sampler.buckets, sampler.batch_size, sampler.allow_bucket_overlap) == (3, 4, True)
    assert (sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed, sampler.drop_last) == (2, 1, False, 5, True)
    assert (sampler.slice_size, sampler.epoch, sampler.rounded_num_samples_per_replica) == (8, 0, 48)
    assert [len(bucket) for bucket in sampler.bucket_idx] == [34, 33, 33]
    assert (np.concatenate(sampler.bucket_idx) == ordered).all()
    assert (sampler.sorted_n_samples == ordered).all()


def test_many_batches_come_in_chunks_without_a_seam() -> None:
    case = Case(3 * CHUNK + 17, 5, 7, 2)
    assert np.unique(steps_of(case.replicas())).size == case.samples


def test_a_batch_longer_than_a_chunk_is_one_piece() -> None:
    sampler = BucketedDistributedSampler(None, 1, CHUNK + 1, np.arange(CHUNK + 1), num_replicas=1, rank=0)
    assert sorted(sampler) == list(range(CHUNK + 1))


def test_an_iterator_keeps_its_epoch_while_the_sampler_goes_on() -> None:
    sampler = Case(40, 2, 4, 1).sampler()
    expected, running = list(sampler), iter(sampler)
    sampler.set_epoch(1)
    assert list(running) == expected != list(sampler)


def test_it_can_be_pickled() -> None:
    sampler = Case(40, 2, 4, 2).sampler(1)
    expected = list(sampler)
    assert list(pickle.loads(pickle.dumps(sampler))) == expected


def test_the_chosen_rank_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="restoke.data"):
        for rank in (0, 2, 3):
            Case(1003, 4, 8, 4).sampler(rank, info_rank=1)
        assert not caplog.messages
        Case(1003, 4, 8, 4).sampler(1, info_rank=1)
    assert caplog.messages == [
        "BucketedDistributedSampler(1003 samples, 256 per replica, 21 padded, 0 dropped; 4 buckets, batches of 8 on 4 replicas)"
    ]
