"""The report of padding before and after bucketing, against sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from restoke.data.bucketed import BucketedDistributedSampler
from restoke.data.padding import PaddingReport
from restoke.errors import DataError
from tests.data.bucket_cases import Case, steps_of


def waste(lengths: np.ndarray, batches: list[list[int]]) -> float:
    """What the batches hold when each is padded to its longest, without the real samples."""
    held = sum(max(lengths[index] for index in batch) * len(batch) for batch in batches)
    return float(held - lengths[sorted({index for batch in batches for index in batch})].sum())


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_after_is_the_sum_over_every_batch_of_every_replica(overlap: bool, drop_last: bool) -> None:
    case = Case(203, 6, 3, 2, overlap, drop_last)
    lengths = np.random.default_rng(1).geometric(0.02, 203)
    samplers = case.replicas()
    for sampler in samplers:
        sampler.set_epoch(2)
    batches = steps_of(samplers).reshape(-1, 3)
    reports = {sampler.padding(lengths) for sampler in samplers}
    assert len(reports) == 1
    (report,) = reports
    assert report.padded_tokens_after == waste(lengths, batches.tolist())
    assert report.tokens == lengths[np.unique(batches)].sum()
    assert report.ratio_after == report.padded_tokens_after / report.tokens


def test_before_lies_among_random_batches_of_the_same_samples() -> None:
    lengths = np.random.default_rng(1).geometric(0.02, 1003)
    sampler = BucketedDistributedSampler(None, 1, 8, lengths=lengths, num_replicas=1, rank=0)
    rng = np.random.default_rng(5)
    shuffles = [rng.permutation(1003).tolist() for _ in range(60)]
    others = [waste(lengths, [shuffle[first : first + 8] for first in range(0, 1003, 8)]) for shuffle in shuffles]
    assert abs(sampler.padding(lengths).padded_tokens_before - np.mean(others)) < 4 * np.std(others)


def test_a_short_last_batch_counts_its_own_samples() -> None:
    sampler = BucketedDistributedSampler(None, 1, 4, lengths=[5, 5, 5, 5, 5, 5], num_replicas=1, rank=0)
    report = sampler.padding([5, 5, 5, 5, 5, 5])
    assert report == PaddingReport(tokens=30, padded_tokens_before=0, padded_tokens_after=10, buckets=1)


def test_more_buckets_mean_less_padding_on_a_heavy_tail() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1, 19_200).astype(int) + 1
    ratios = [
        BucketedDistributedSampler(None, buckets, 32, lengths=lengths, num_replicas=1, rank=0).padding(lengths).ratio_after
        for buckets in (1, 5, 25, 100)
    ]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.5
    assert ratios[-1] < 0.2


def test_lengths_may_be_real_numbers_narrow_integers_or_zero() -> None:
    sampler = BucketedDistributedSampler(None, 2, 2, np.arange(6), num_replicas=1, rank=0, allow_bucket_overlap=True)
    assert sampler.padding(np.full(6, 200, dtype=np.uint8)).tokens == 1200
    assert sampler.padding(torch.full((6,), 0.5)).tokens == 3.0
    assert sampler.padding(np.full(6, 40_000, dtype=np.float16)).tokens == 240_000  # beyond what its own type holds
    assert sampler.padding([0] * 6).ratio_before == sampler.padding([0] * 6).ratio_after == 0


def test_it_says_so_in_one_line() -> None:
    text = str(PaddingReport(tokens=1_234_567, padded_tokens_before=2_469_134, padded_tokens_after=123_457, buckets=8))
    assert text == "padding 200.0% of 1,234,567 tokens in random batches -> 10.0% with 8 buckets"


def test_an_epoch_with_nothing_left_has_no_padding() -> None:
    sampler = BucketedDistributedSampler(None, 1, 2, np.arange(6), num_replicas=1, rank=0)
    sampler.advance(3)
    sampler.load_state_dict(sampler.state_dict())
    other = BucketedDistributedSampler(None, 1, 3, np.arange(6), num_replicas=1, rank=0)
    other.load_state_dict(sampler.state_dict())
    assert other.padding([1] * 6) == PaddingReport(0, 0, 0, 1)


@pytest.mark.parametrize("lengths", [[1, 2], [1] * 7, [-1] * 6, ["a"] * 6])
def test_lengths_that_fit_no_sample_are_refused(lengths: list[object]) -> None:
    with pytest.raises(DataError, match="lengths="):
        BucketedDistributedSampler(None, 1, 2, np.arange(6), num_replicas=1, rank=0).padding(lengths)
