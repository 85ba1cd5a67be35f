"""Configurations of the bucketed sampler, drawn at random, and what one epoch gives on all replicas."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from attrs import asdict, frozen
from hypothesis import strategies as st

from restoke.data.bucketed import BucketedDistributedSampler


@frozen
class Case:
    samples: int
    buckets: int
    batch_size: int
    num_replicas: int
    allow_bucket_overlap: bool = False
    drop_last: bool = False
    shuffle: bool = True
    seed: int = 0

    @property
    def slice_size(self) -> int:
        return self.batch_size * self.num_replicas

    @property
    def lengths(self) -> np.ndarray:
        """All different, so that the buckets have no choice."""
        return np.random.default_rng(self.samples).permutation(self.samples) + 5

    @property
    def sizes(self) -> list[int]:
        return [len(bucket) for bucket in np.array_split(np.arange(self.samples), self.buckets)]

    @property
    def possible(self) -> bool:
        """Only dropping everything is impossible."""
        return not self.drop_last or (self.samples if self.allow_bucket_overlap else max(self.sizes)) >= self.slice_size

    def sampler(self, rank: int = 0, **changed: Any) -> BucketedDistributedSampler:
        settings = {**asdict(self), "rank": rank, **changed}
        samples = settings.pop("samples")
        return BucketedDistributedSampler(range(samples), lengths=self.lengths, **settings)

    def replicas(self) -> list[BucketedDistributedSampler]:
        return [self.sampler(rank) for rank in range(self.num_replicas)]


def steps_of(samplers: list[BucketedDistributedSampler]) -> np.ndarray:
    """(steps, replicas, batch_size) indices of one iteration on all replicas."""
    drawn = [list(sampler) for sampler in samplers]
    assert [len(indices) for indices in drawn] == [len(sampler) for sampler in samplers]
    return np.array(drawn, dtype=int).reshape(len(samplers), -1, samplers[0].batch_size).swapaxes(0, 1)


@st.composite
def cases(draw: st.DrawFn, samples: int = 150) -> Case:
    """Any configuration at all, the impossible ones left out."""
    count = draw(st.integers(1, samples))
    case = Case(
        count,
        draw(st.integers(1, count)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 5)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(-(2**63), 2**64 - 1)),
    )
    return case if case.possible else Case(**{**asdict(case), "drop_last": False})


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
