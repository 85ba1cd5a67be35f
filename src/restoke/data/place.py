"""Moves a batch, however nested, to a device: types stay what they are, and what need not move stays the same object."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache, partial
from typing import Any

import attrs
import torch
from torch import Tensor

from restoke.errors import DataError

Mover = Callable[[Any, torch.device, bool], Any]


def place(batch: Any, device: torch.device | str, *, non_blocking: bool = False) -> Any:
    """`batch` with every tensor in it on `device`; dtypes do not change, and neither does `batch` itself.

    It looks into mappings, lists, tuples, named tuples, attrs classes and dataclasses (frozen ones too). An object with a
    method `to` is asked to move itself. All else is returned as it is.

    Raises:
        DataError: a read-only mapping that holds tensors and cannot be made from a dict.
    """
    target = device if isinstance(device, torch.device) else torch.device(device)
    return _mover(type(batch))(batch, target, non_blocking)


def _choose(kind: type) -> Mover:
    if issubclass(kind, Tensor):
        return _tensor
    if callable(getattr(kind, "to", None)):
        return _asked if _takes_non_blocking(kind) else _asked_plainly
    for container, mover in ((MutableMapping, _mapping), (Mapping, _frozen_mapping), (list, _list), (tuple, _tuple)):
        if issubclass(kind, container):
            return mover
    if attrs.has(kind):
        return partial(_fields, tuple(item.name for item in attrs.fields(kind)))
    if dataclasses.is_dataclass(kind):
        return partial(_fields, tuple(item.name for item in dataclasses.fields(kind)))
    return _stay


_mover: Callable[[type], Mover] = lru_cache(maxsize=1024)(_choose)


def _takes_non_blocking(kind: Any) -> bool:
    try:
        parameters = inspect.signature(kind.to).parameters
    except (TypeError, ValueError):  # written in C
        return False
    return "non_blocking" in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _stay(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    return batch


def _tensor(batch: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
    return batch if batch.device == device else batch.to(device, non_blocking=non_blocking)


def _asked(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    moved = batch.to(device, non_blocking=non_blocking)
    return batch if moved is None else moved  # None: it has moved in place


def _asked_plainly(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    moved = batch.to(device)
    return batch if moved is None else moved


def _moved(items: Mapping[Any, Any], device: torch.device, non_blocking: bool) -> dict[Any, Any]:
    """Only what became another object."""
    moved = {}
    for key, value in items.items():
        new = _mover(type(value))(value, device, non_blocking)
        if new is not value:
            moved[key] = new
    return moved


def _mapping(batch: MutableMapping[Any, Any], device: torch.device, non_blocking: bool) -> Any:
    moved = _moved(batch, device, non_blocking)
    if not moved:
        return batch
    if type(batch) is dict:
        return batch | moved
    twin = copy.copy(batch)  # keeps the type, its default factory, its attributes
    for key, value in moved.items():
        twin[key] = value
    return twin


def _frozen_mapping(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    moved = _moved(batch, device, non_blocking)
    if not moved:
        return batch
    try:
        return type(batch)({**batch, **moved})
    except TypeError as error:
        why = f"its tensors cannot be replaced ({error})"
        raise DataError.of("batch", type(batch).__name__, why, "give the class a method to(device), or use a dict") from error


def _items(batch: Any, device: torch.device, non_blocking: bool) -> list[Any] | None:
    """The items after the move; None where all stayed."""
    new, stayed = [], True
    for item in batch:
        moved = _mover(type(item))(item, device, non_blocking)
        stayed = stayed and moved is item
        new.append(moved)
    return None if stayed else new


def _list(batch: list[Any], device: torch.device, non_blocking: bool) -> list[Any]:
    new = _items(batch, device, non_blocking)
    if new is None:
        return batch
    if type(batch) is list:
        return new
    twin = copy.copy(batch)
    twin[:] = new
    return twin


def _tuple(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    new = _items(batch, device, non_blocking)
    if new is None:
        return batch
    make = getattr(batch, "_make", type(batch))  # a named tuple's constructor takes its fields one by one
    return make(new)


def _fields(names: tuple[str, ...], batch: Any, device: torch.device, non_blocking: bool) -> Any:
    held = {name: value for name in names if (value := getattr(batch, name, None)) is not None}
    moved = _moved(held, device, non_blocking)
    if not moved:
        return batch
    twin = copy.copy(batch)
    for name, value in moved.items():
        object.__setattr__(twin, name, value)  # frozen classes refuse the plain way
    return twin
