"""One epoch of the bucketed sampler over all replicas: what it draws, what it repeats, what it leaves out."""

from __future__ import annotations

import logging
import pickle
from enum import Enum
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from restoke.data.bucketed import CHUNK, BucketedDistributedSampler
from restoke.errors import DataError
from tests.data.bucket_cases import Case, cases, steps_of

QUICK = settings(max_examples=150, deadline=None)


def check_epoch(case: Case, epoch: int) -> None:
    """Everything that is promised of one epoch, from formulas on the sizes of the buckets."""
    samplers = case.replicas()
    for sampler in samplers:
        sampler.set_epoch(epoch)
    steps = steps_of(samplers)  # equal lengths on all replicas, else this fails
    drawn, times = np.unique(steps, return_counts=True)
    spare = [case.samples] if case.allow_bucket_overlap else case.sizes
    padded = 0 if case.drop_last else sum(-size % case.slice_size for size in spare)
    dropped = sum(size % case.slice_size for size in spare) if case.drop_last else 0
    assert {(sampler.padded, sampler.dropped) for sampler in samplers} == {(padded, dropped)}
    assert (times - 1).sum() == padded
    assert len(drawn) == case.samples - dropped
    assert (
        len(samplers[0])
        == samplers[0].rounded_num_samples_per_replica
        == (case.samples + padded - dropped) // case.num_replicas
    )
    check_buckets(case, steps)


def check_buckets(case: Case, steps: np.ndarray) -> None:
    """At each step all replicas draw from one bucket; only shared slices hold more, and no more of them than needed."""
    bucket = np.empty(case.samples, dtype=int)
    bucket[np.argsort(case.lengths)] = np.repeat(np.arange(case.buckets), case.sizes)
    flat = bucket[steps].reshape(len(steps), -1)
    mixed = flat[(flat != flat[:, :1]).any(axis=1)]
    leftovers = sum(size % case.slice_size for size in case.sizes)
    assert len(mixed) <= (-(-leftovers // case.slice_size) if case.allow_bucket_overlap else 0)
    spans = sorted((int(row.min()), int(row.max())) for row in mixed)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


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


# The defects of Stoke's sampler: numbers as in the list of what was measured there.


def test_s1_a_torch_loader_gives_whole_batches_of_one_bucket() -> None:
    case = Case(50, 3, 4, 2)
    lengths = torch.from_numpy(case.lengths)
    for sampler in case.replicas():
        batches = list(DataLoader(lengths, batch_size=4, sampler=sampler, num_workers=0))
        assert not isinstance(sampler, DistributedSampler)
        assert len(batches) == len(sampler) // 4 == 8
        assert all(batch.max() - batch.min() < 17 for batch in batches)


def test_s2_overlap_without_dropping_pads_less_than_a_slice() -> None:
    check_epoch(Case(1003, 4, 8, 4, allow_bucket_overlap=True), 0)
    assert Case(1003, 4, 8, 4, allow_bucket_overlap=True).sampler().padded == 21


def test_s3_leftovers_of_exactly_one_slice_become_a_slice() -> None:
    case = Case(36, 2, 4, 1, allow_bucket_overlap=True, drop_last=True)  # 18 and 18: 2 and 2 are left
    check_epoch(case, 0)
    assert (case.sampler().dropped, len(case.sampler())) == (0, 36)


@pytest.mark.parametrize("entries", [99, 101])
def test_s4_an_order_of_another_size_than_the_dataset_is_refused(entries: int) -> None:
    with pytest.raises(DataError, match=rf"sorted_idx='{entries} entries': it has {entries} entries, the dataset 100 samples"):
        BucketedDistributedSampler(range(100), 2, 4, np.arange(entries))


@QUICK
@given(cases(samples=40))
def test_s5_iterating_changes_nothing(case: Case) -> None:
    given_order = np.argsort(case.lengths)
    kept = given_order.copy()
    sampler = BucketedDistributedSampler(None, case.buckets, case.batch_size, given_order, shuffle=case.shuffle)
    before = pickle.dumps((sampler.state_dict(), len(sampler), sampler.bucket_idx))
    assert list(sampler) == list(sampler)
    assert pickle.dumps((sampler.state_dict(), len(sampler), sampler.bucket_idx)) == before
    assert (given_order == kept).all()


class Backend(Enum):
    ddp = "ddp"


@pytest.mark.parametrize("backend", [None, "ddp", "horovod", Backend.ddp])
def test_s6_s7_any_backend_works_alone_without_a_process_group(backend: object) -> None:
    sampler = BucketedDistributedSampler(range(10), 2, 2, np.arange(10), backend)
    assert (sampler.num_replicas, sampler.rank, len(sampler)) == (1, 0, 12)


def test_s7_replicas_come_from_the_launcher_before_there_is_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    sampler = BucketedDistributedSampler(range(12), 2, 2, np.arange(12))
    assert (sampler.num_replicas, sampler.rank) == (3, 2)
    assert BucketedDistributedSampler(range(12), 2, 2, np.arange(12), num_replicas=4).rank == 2
    assert BucketedDistributedSampler(range(12), 2, 2, np.arange(12), rank=1).num_replicas == 3


@pytest.mark.parametrize("samples", [1, 2, 99])
def test_s8_there_is_no_smallest_number_of_samples(samples: int) -> None:
    for buckets in (1, samples):
        check_epoch(Case(samples, buckets, 3, 2), 0)


def test_s8_the_refusal_names_the_right_quantities() -> None:
    with pytest.raises(DataError) as caught:
        Case(100, 9, 7, 2, drop_last=True).sampler()
    assert str(caught.value) == (
        "drop_last=True: no batch would be left of the 12 in the largest bucket: one takes batch_size * num_replicas = 14."
        " Instead: drop_last=False, a smaller batch_size, or fewer buckets."
    )


def test_s9_indices_are_python_ints() -> None:
    assert {type(index) for index in Case(50, 3, 4, 2).sampler()} == {int}
