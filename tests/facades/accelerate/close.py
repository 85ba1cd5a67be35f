"""Compares nested lists of numbers."""

from __future__ import annotations

from typing import Any


def flat(nested: Any) -> list[float]:
    return [number for item in nested for number in flat(item)] if isinstance(nested, list | tuple) else [float(nested)]


def close(mine: Any, other: Any, within: float = 1e-6) -> bool:
    a, b = flat(mine), flat(other)
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) <= within
