"""One rank's contiguous share of inputs that every rank has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from restoke.errors import DataError


@contextmanager
def share_of(inputs: Any, rank: int, size: int, padded: bool) -> Iterator[Any]:
    """The share; the context does nothing when it ends.

    Raises:
        DataError: it cannot be cut, or a dict has entries of different lengths.
    """
    yield _share(inputs, rank, size, padded)


def _share(inputs: Any, rank: int, size: int, padded: bool) -> Any:
    if size == 1:
        return inputs
    if isinstance(inputs, Mapping):
        _check_lengths(inputs)
        return {key: _share(value, rank, size, padded) for key, value in inputs.items()}
    if not isinstance(inputs, Sized) or isinstance(inputs, str):
        why = f"a {type(inputs).__name__} cannot be cut"
        raise DataError.of("inputs", type(inputs).__name__, why, "a list, tuple, tensor, or dict of those")
    first, end = bounds(len(inputs), rank, size)
    return _cut(inputs, first, end, -(-len(inputs) // size) if padded else 0)


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Where the rank's share begins and ends; the first ranks have one more where it does not divide."""
    each, extra = divmod(length, size)
    first = rank * each + min(rank, extra)
    return first, first + each + (rank < extra)


def _check_lengths(inputs: Mapping[Any, Any]) -> None:
    lengths = {key: len(value) for key, value in inputs.items() if isinstance(value, Sized)}
    if len(set(lengths.values())) > 1:
        raise DataError.of("inputs", lengths, "the entries of a dict are cut alike", "entries of one length")


def _cut(inputs: Any, first: int, end: int, least: int) -> Any:
    """From first to end, and repeated entries of the last there is until it has `least`."""
    lacking = max(least - (end - first), 0) if len(inputs) else 0
    last = slice(end - 1, end) if end > first else slice(len(inputs) - 1, len(inputs))
    if isinstance(inputs, Tensor):
        own = inputs[first:end]
        return torch.cat([own, *[inputs[last]] * lacking]) if lacking else own
    if isinstance(inputs, list):
        return inputs[first:end] + inputs[last] * lacking
    if isinstance(inputs, tuple):
        return inputs[first:end] + inputs[last] * lacking
    return _selected(inputs, [*range(first, end), *[last.indices(len(inputs))[0]] * lacking])


def _selected(inputs: Any, indices: list[int]) -> Any:
    """As `datasets.Dataset` picks its rows."""
    select = getattr(inputs, "select", None)
    if not callable(select):
        why = f"a {type(inputs).__name__} is no sequence, and has no select"
        raise DataError.of("inputs", type(inputs).__name__, why, "a list, tuple, tensor, or dict of those")
    return select(indices)
