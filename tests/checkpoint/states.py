"""States to save, and whether two values are exactly the same."""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from datetime import datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from restoke import checkpoint
from restoke.parts import Captured, Chunk
from restoke.world import World

ONE = World(0, 1, 0, 1, torch.device("cpu"))


def filled(mark: float) -> Captured:
    """A small state in which every number says which save it belongs to."""
    chunks = {
        "model/weight": Chunk.whole(torch.full((5, 3), mark)),
        "model/bias": Chunk.whole(torch.full((3,), mark, dtype=torch.bfloat16)),
        "optimizer/weight/step": Chunk.whole(torch.tensor(mark)),
        "model/empty": Chunk.whole(torch.empty(0, 4)),
    }
    return Captured(chunks, {"extras": {"mark": mark, "seen": torch.full((2,), mark)}, "rank/rng": {"state": mark}})


def save(folder: Path, tag: str, mark: float, **options: Any) -> Path:
    return checkpoint.write(folder, tag, filled(mark), ONE, meta={"mark": mark}, **options)


def load(folder: Path, tag: str | None = None) -> checkpoint.Opened:
    return checkpoint.read(folder, tag, ONE)


def mark_of(saved: checkpoint.Opened) -> float:
    """The one mark that everything in it bears."""
    marks = {saved.meta["mark"], saved.values["extras"]["mark"], saved.rank_values[0]["rng"]["state"]}
    marks |= set(saved.values["extras"]["seen"].tolist())
    for key in saved.keys():  # noqa: SIM118
        marks |= set(saved.read(key).float().flatten().tolist())
    assert len(marks) == 1, marks
    return float(marks.pop())


def same(one: Any, other: Any) -> bool:
    """Equal in type and in every bit; dicts in order too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, datetime | time):
        return repr(one) == repr(other)  # equality overlooks the fold and the zone
    if isinstance(one, deque) and one.maxlen != other.maxlen:
        return False
    return _same_inside(one, other)


def _same_inside(one: Any, other: Any) -> bool:
    if isinstance(one, dict | OrderedDict | Counter):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    return bool(one == other)


def bits(tensor: Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def files_of(path: Path) -> Mapping[str, bytes]:
    return {child.name: child.read_bytes() for child in sorted(path.iterdir())}
