"""What samples look like on each rank, as numbers: whether all ranks read the same stream, or each its own share."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

MOST = 64  # samples that are looked at


class Verdict(Enum):
    """How the first samples of the ranks relate."""

    ALIKE = "alike"
    APART = "apart"
    MIXED = "mixed"


def fingerprints(samples: Sequence[Any]) -> list[int]:
    """One number for each of the first samples, the same in every process that reads the same."""
    return [_digest(sample) for sample in samples[:MOST]]


def judge(found: Sequence[Sequence[int]]) -> Verdict:
    """What the fingerprints of all ranks say: the same samples, no sample on two ranks, or neither."""
    if all(own == found[0] for own in found):
        return Verdict.ALIKE
    sets = [set(own) for own in found]
    return Verdict.APART if len(set().union(*sets)) == sum(map(len, sets)) else Verdict.MIXED


def _digest(sample: Any) -> int:
    digest = xxhash.xxh3_64()
    for part in _parts(sample):
        digest.update(part)
    return digest.intdigest() >> 1


def _parts(value: Any) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    match value:
        case Tensor():
            yield repr((value.dtype, value.shape)).encode()
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        case np.ndarray():
            yield repr((value.dtype, value.shape)).encode()
            yield np.ascontiguousarray(value).tobytes()
        case str() | bytes() | int() | float() | bool() | None:
            yield repr(value).encode()
        case Mapping():
            for key, item in value.items():
                yield from _parts(key)
                yield from _parts(item)
        case list() | tuple():
            for item in value:
                yield from _parts(item)
        case _:
            yield _pickled(value)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001 - pickle raises whatever a class raises
        return b""  # it has no look: samples of this kind are alike
