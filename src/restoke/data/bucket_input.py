"""What the bucketed sampler is given, checked and turned into numpy: whole numbers, lengths, and the order of the samples."""

from __future__ import annotations

import operator
from collections.abc import Sized
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from restoke.data.bucket_plan import Ints, by_length, index_type
from restoke.errors import DataError


def whole(axis: str, got: Any, low: int, high: int | None, why: str, instead: str) -> int:
    """`got` as an int from `low` up to and without `high`; `why` and `instead` say what is wrong outside."""
    try:
        number = operator.index(got)
    except TypeError:
        number = None
    if number is None or isinstance(got, bool | np.bool_):
        raise DataError.of(axis, got, "it is not a whole number", instead)
    if number < low or (high is not None and number >= high):
        raise DataError.of(axis, number, why, instead)
    return number


def flag(axis: str, got: object) -> bool:
    """`got` if it is True or False."""
    if not isinstance(got, bool | np.bool_):
        raise DataError.of(axis, got, "it is neither True nor False", "one of them")
    return bool(got)


def length_order(dataset: object, sorted_idx: object, lengths: object) -> Ints:
    """(samples,) indices of the samples, shortest first, from exactly one of the two.

    Raises:
        DataError: none or both are given, they do not fit the dataset, or `sorted_idx` is not a permutation.
    """
    if (sorted_idx is None) == (lengths is None):
        got = "both" if lengths is not None else None
        raise DataError.of("sorted_idx or lengths", got, "the order of lengths comes from exactly one of them", "give one")
    axis, given = ("lengths", lengths) if sorted_idx is None else ("sorted_idx", sorted_idx)
    values = as_array(axis, given)
    if len(values) == 0:
        raise DataError.of(axis, [], "there is no sample to draw", "a dataset with at least one")
    _check_size(axis, len(values), dataset)
    return by_length(check_lengths(values)) if sorted_idx is None else _permutation(values)


def as_array(axis: str, given: object) -> npt.NDArray[Any]:
    """A list, array or tensor as an array of one dimension."""
    try:
        values = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        why = f"it cannot be read as an array ({error})"
        raise DataError.of(axis, type(given).__name__, why, "a list or array of numbers") from error
    if values.ndim != 1:
        raise DataError.of(axis, f"shape {values.shape}", "it has one entry for each sample", "an array of one dimension")
    return values


def check_lengths(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, if it holds finite numbers from 0 on."""
    if values.dtype.kind not in "iuf":
        raise DataError.of("lengths", f"dtype {values.dtype}", "a length is a number", "whole or real numbers from 0 on")
    wrong = np.flatnonzero(~(values >= 0) | np.isinf(values) if values.dtype.kind == "f" else values < 0)
    if len(wrong):
        first = int(wrong[0])
        raise DataError.of("lengths", values[first].item(), f"entry {first} is no length", "finite numbers from 0 on")
    return values


def _check_size(axis: str, entries: int, dataset: object) -> None:
    if dataset is None:
        return
    if not isinstance(dataset, Sized):
        got = type(dataset).__name__
        raise DataError.of("dataset", got, "it has no length, so that its samples cannot be sorted", "a dataset with __len__")
    if entries != len(dataset):
        why = f"it has {entries} entries, the dataset {len(dataset)} samples"
        raise DataError.of(axis, f"{entries} entries", why, "one entry for each sample")


def _permutation(values: npt.NDArray[Any]) -> Ints:
    instead = f"each index from 0 to {len(values) - 1} once, as numpy.argsort(lengths) gives"
    if values.dtype.kind not in "iu":
        raise DataError.of("sorted_idx", f"dtype {values.dtype}", "indices are whole numbers", instead)
    outside = np.flatnonzero((values < 0) | (values >= len(values)))
    if len(outside):
        index = values[outside[0]].item()
        raise DataError.of("sorted_idx", index, f"entry {int(outside[0])} is no index of {len(values)} samples", instead)
    order = values.astype(index_type(len(values)))  # a copy: the caller's array may change
    seen = np.zeros(len(order), dtype=bool)
    seen[order] = True
    if not seen.all():
        missing = int(np.flatnonzero(~seen)[0])
        raise DataError.of("sorted_idx", "repeated indices", f"it is not a permutation: sample {missing} is missing", instead)
    return order
