"""What the bucketed sampler refuses: only what is impossible, each with axis, got, why and instead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from restoke.data.bucketed import BucketedDistributedSampler
from restoke.errors import DataError

POSSIBLE: dict[str, Any] = {"dataset": range(10), "buckets": 2, "batch_size": 2, "lengths": [*range(10)]}


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


def order(*indices: object) -> dict[str, Any]:
    return {"sorted_idx": [*indices], "lengths": None, "dataset": None, "buckets": 1}


def lengths(*values: object) -> dict[str, Any]:
    return {"lengths": [*values], "dataset": None, "buckets": 1}


@pytest.mark.parametrize(
    ("changed", "axis", "why"),
    [
        ({"buckets": 0}, "buckets", "10 samples cannot fill them"),
        ({"buckets": 11}, "buckets", "10 samples cannot fill them"),
        ({"buckets": 2.0}, "buckets", "not a whole number"),
        ({"buckets": True}, "buckets", "not a whole number"),
        ({"buckets": np.True_}, "buckets", "not a whole number"),
        ({"batch_size": 0}, "batch_size", "at least one"),
        ({"batch_size": "4"}, "batch_size", "not a whole number"),
        ({"num_replicas": 0}, "num_replicas", "at least this one"),
        ({"num_replicas": 2, "rank": 2}, "rank", "there are 2 replicas"),
        ({"num_replicas": 2, "rank": -1}, "rank", "there are 2 replicas"),
        ({"rank": 1}, "rank", "there are 1 replicas"),
        ({"seed": 2**64}, "seed", "more than 64 bits"),
        ({"seed": None}, "seed", "not a whole number"),
        ({"shuffle": "False"}, "shuffle", "neither True nor False"),
        ({"drop_last": 1}, "drop_last", "neither True nor False"),
        ({"allow_bucket_overlap": None}, "allow_bucket_overlap", "neither True nor False"),
        ({"drop_last": True, "batch_size": 6}, "drop_last", "no batch would be left of the 5 in the largest bucket"),
        ({"drop_last": True, "batch_size": 11, "allow_bucket_overlap": True}, "drop_last", "no batch would be left of all 10"),
        ({"lengths": None}, "sorted_idx or lengths", "exactly one"),
        ({"sorted_idx": [*range(10)]}, "sorted_idx or lengths", "exactly one"),
        ({"dataset": range(11)}, "lengths", "it has 10 entries, the dataset 11 samples"),
        ({"dataset": Endless()}, "dataset", "it has no length"),
        (order(), "sorted_idx", "no sample"),
        (order(0, 0), "sorted_idx", "sample 1 is missing"),
        (order(0, 2), "sorted_idx", "entry 1 is no index of 2 samples"),
        (order(-1, 0), "sorted_idx", "entry 0 is no index"),
        (order(0.0, 1.0), "sorted_idx", "whole numbers"),
        (order(True, False), "sorted_idx", "whole numbers"),
        (order([0, 1], [1, 0]), "sorted_idx", "one entry for each sample"),
        (lengths(), "lengths", "no sample"),
        (lengths(1, -1), "lengths", "entry 1 is no length"),
        (lengths(1.0, float("nan")), "lengths", "entry 1 is no length"),
        (lengths(float("inf"), 1.0), "lengths", "entry 0 is no length"),
        (lengths("a", "b"), "lengths", "a length is a number"),
        (lengths([1], [2]), "lengths", "one entry for each sample"),
        (lengths([1], [2, 3]), "lengths", "cannot be read as an array"),
        ({"lengths": torch.ones(10, dtype=torch.bfloat16)}, "lengths", "cannot be read as an array"),
    ],
)
def test_the_impossible_is_refused(changed: dict[str, Any], axis: str, why: str) -> None:
    with pytest.raises(DataError) as caught:
        BucketedDistributedSampler(**{**POSSIBLE, **changed})
    (problem,) = caught.value.problems
    assert problem.axis == axis
    assert why in problem.why
    assert problem.instead


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"buckets": 10},
        {"buckets": np.int64(3)},
        {"batch_size": 1000},
        {"batch_size": torch.tensor(3)},
        {"seed": -5},
        {"seed": 2**64 - 1},
        {"shuffle": np.False_},
        {"drop_last": True, "batch_size": 5},
        {"drop_last": True, "batch_size": 10, "allow_bucket_overlap": True},
        {"dataset": None},
        {"lengths": [0] * 10},
        {"lengths": np.arange(10, dtype=np.int8)},
        {"lengths": torch.arange(10.0, requires_grad=True)},
        order(0),
        {**order(1, 0, 2), "sorted_idx": np.array([1, 0, 2], dtype=np.uint8)},
    ],
)
def test_the_unusual_is_not(changed: dict[str, Any]) -> None:
    sampler = BucketedDistributedSampler(**{**POSSIBLE, **changed})
    assert len(list(sampler)) == len(sampler) > 0


def test_an_order_may_change_after_it_was_given() -> None:
    given = np.arange(10)
    sampler = BucketedDistributedSampler(None, 2, 2, given)
    expected = list(sampler)
    given[:] = 0
    assert list(sampler) == expected
