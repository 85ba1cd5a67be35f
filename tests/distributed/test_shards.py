"""Balanced cuts: every element belongs to one rank, and no rank has two more than another."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restoke.distributed import Group, Shard
from restoke.distributed.shards import cut
from restoke.nn import slice as slice_
from tests.nn.joined import refused


def shards(size: int, n: int, dim: int) -> list[Shard]:
    return [Shard(Group(tuple(range(n)), rank), dim, size) for rank in range(n)]


@given(size=st.integers(1, 10**9), parts=st.integers(1, 1000))
def test_cuts_are_balanced_and_follow_each_other(size: int, parts: int) -> None:
    cuts = [cut(size, parts, index) for index in range(parts)]
    assert sum(length for _, length in cuts) == size
    assert all(start + length == following for (start, length), (following, _) in pairwise(cuts))
    lengths = [length for _, length in cuts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(("size", "lengths"), [(8, [2, 2, 2, 2]), (10, [3, 3, 2, 2]), (9, [3, 2, 2, 2]), (3, [1, 1, 1, 0])])
def test_worked_lengths(size: int, lengths: list[int]) -> None:
    for shard in shards(size, 4, 0):
        assert shard.lengths == lengths
        assert shard.length == lengths[shard.group.rank]
        assert shard.start == sum(lengths[: shard.group.rank])


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_parts_laid_side_by_side_are_the_whole(n: int, dim: int) -> None:
    whole = torch.arange(35).view(5, 7)
    parts = shards(whole.shape[dim], n, dim)
    assert torch.equal(torch.cat([shard.of(whole) for shard in parts], dim), whole)
    assert torch.equal(torch.cat(slice_(whole, n, dim), dim), whole)
    for shard, sliced in zip(parts, slice_(whole, n, dim, contiguous=True), strict=True):
        part = shard.of(whole)
        assert torch.equal(sliced, part)
        assert sliced.is_contiguous()
        assert shard.whole_shape(part) == (5, 7)
        offsets = shard.offsets(part)
        rows, columns = (slice(at, at + size) for at, size in zip(offsets, part.shape, strict=True))
        assert torch.equal(whole[rows, columns], part)
        assert (shard.along(3).dim, shard.along(3).start) == (3, shard.start)
        assert copy.deepcopy(shard) is shard


def test_slices_are_of_the_last_dimension_unless_told() -> None:
    assert [tuple(part.shape) for part in slice_(torch.ones(4, 5), 2)] == [(4, 3), (4, 2)]


def test_what_is_no_whole_is_refused() -> None:
    assert "dimension 0 of the whole has 5 elements" in refused(shards(5, 2, 0)[0].of, torch.ones(4, 2))
    assert "size=0" in refused(Shard, Group((0,), 0), 0, 0)
