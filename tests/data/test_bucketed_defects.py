"""The defects of Stoke's sampler, numbered as in the list of what was measured there: ours does each right."""

from __future__ import annotations

import pickle
from enum import Enum

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import DataLoader, DistributedSampler

from restoke.data.bucketed import BucketedDistributedSampler
from restoke.errors import DataError
from tests.data.bucket_cases import Case, cases, check_epoch

QUICK = settings(max_examples=150, deadline=None)


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
