"""Optimizer state of 8 bits, as the plain tensors that it consists of: a checkpoint holds these, bit for bit."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

PACKED = "OptimState8bit"  # torchao's, which is imported where there is one
FIELDS = ("codes", "scale", "qmap")
Entry = tuple[str, Any]


def unpacked(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries of a parameter's state; `exp_avg` of 8 bits is `exp_avg:codes`, `exp_avg:scale` and `exp_avg:qmap`."""
    for key, value in entries:
        if type(value).__name__ == PACKED:
            yield from ((f"{key}:{field}", vars(value)[field]) for field in FIELDS)
        else:
            yield key, value


def packed(state: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """What `unpacked` took apart, for a parameter of this dtype."""
    whole = {key: value for key, value in state.items() if ":" not in key}
    for key in dict.fromkeys(key.partition(":")[0] for key in state if ":" in key):
        whole[key] = _state([state[f"{key}:{field}"] for field in FIELDS], dtype)
    return whole


def _state(fields: list[Tensor], dtype: torch.dtype) -> Any:
    signed = bool((fields[-1] < 0).any())
    return vars(importlib.import_module("torchao.optim.subclass_8bit"))[PACKED](*fields, signed, dtype)
