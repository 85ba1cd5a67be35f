"""Equal samples look alike in any process, others do not, and what the ranks read is judged by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from restoke.data.fingerprint import MOST, Verdict, fingerprints, judge

SAMPLES: list[Any] = [
    0,
    1,
    1.0,
    "1",
    b"1",
    None,
    True,
    torch.tensor(1),
    torch.tensor([1]),
    torch.tensor([1.0]),
    torch.tensor([1.0], dtype=torch.bfloat16),
    np.array([1, 2]),
    np.array([2, 1]),
    [1, 2],
    (1, 2),
    {"x": torch.zeros(2), "y": 1},
    {"x": torch.zeros(2), "y": 2},
    complex(1, 2),
]


def test_samples_that_differ_look_different_and_the_same_look_alike() -> None:
    one, again = fingerprints(SAMPLES), fingerprints(SAMPLES)
    assert one == again
    assert len(set(one)) == len(SAMPLES)


def test_what_cannot_be_looked_at_is_alike_and_only_the_first_are() -> None:
    assert len(set(fingerprints([lambda: 1, lambda: 2]))) == 1
    assert len(fingerprints(list(range(1000)))) == MOST


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([[1, 2], [1, 2]], Verdict.ALIKE),
        ([[], []], Verdict.ALIKE),
        ([[1, 3], [2, 4]], Verdict.APART),
        ([[1, 3], []], Verdict.APART),
        ([[1, 1], [2, 2]], Verdict.APART),
        ([[1, 2], [2, 1]], Verdict.MIXED),
        ([[1, 2], [1, 2], [3, 4]], Verdict.MIXED),
        ([[1], [1, 2]], Verdict.MIXED),
    ],
)
def test_ranks_read_alike_or_apart_or_mixed(found: list[list[int]], verdict: Verdict) -> None:
    assert judge(found) is verdict
