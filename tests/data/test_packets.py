"""A batch goes through bytes and comes back the same, whatever it holds."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from restoke.data.packets import pack, unpack

Pair = namedtuple("Pair", "one other")


@attrs.define
class Batch:
    x: torch.Tensor
    names: list[str]


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (5, 7)])
def test_tensors_keep_type_shape_and_values(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = (torch.rand(shape) * 100).to(dtype)
    for sent in (given, given.T if given.ndim == 2 else given):
        got = unpack(pack(sent))
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert torch.equal(got, sent)
        got += got  # it may be written to
        assert got.data_ptr() % 64 == 0 or not got.numel()


def test_containers_and_objects_keep_what_they_are() -> None:
    given = {"x": Pair(torch.arange(3), np.arange(4.0)), "rows": [Batch(torch.ones(2), ["a", "b"]), (1, None, "text", b"raw")]}
    got: Any = unpack(pack(given))
    assert type(got["x"]) is Pair
    assert torch.equal(got["x"].one, torch.arange(3))
    assert np.array_equal(got["x"].other, np.arange(4.0))
    assert isinstance(got["rows"][0], Batch)
    assert torch.equal(got["rows"][0].x, torch.ones(2))
    assert got["rows"][1] == (1, None, "text", b"raw")


def test_a_tensor_costs_its_bytes_and_little_more() -> None:
    assert pack(torch.zeros(10_000)).numel() < 40_000 + 1_000
    view = torch.zeros(10_000)[:10]
    assert pack(view).numel() < 1_000


def test_tensors_of_other_kinds_take_torchs_own_way() -> None:
    learnt = torch.nn.Parameter(torch.ones(2))
    sparse = torch.eye(3).to_sparse()
    got = unpack(pack([learnt, sparse]))
    assert got[0].requires_grad
    assert torch.equal(got[1].to_dense(), torch.eye(3))
