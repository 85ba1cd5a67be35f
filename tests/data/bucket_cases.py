"""Configurations of the bucketed sampler, drawn at random, and what one epoch gives on all replicas."""

from __future__ import annotations

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
