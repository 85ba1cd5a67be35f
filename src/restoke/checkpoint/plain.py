"""Plain Python values as JSON and back, exactly: what JSON lacks becomes `{"$type": ...}`, tensors go to the chunk files.

Nothing is pickled, so a value must be of exactly one of the types listed here; another one is refused.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, final

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from restoke.checkpoint import arrays
from restoke.errors import CheckpointError

DEPTH = 64  # levels of nesting; more means that a value contains itself
EXACT = 1 << 53  # whole numbers up to here survive every JSON reader
REMEDY = "convert it to plain values (pickle is not used)"
MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError, MemoryError, struct.error)
Child = Callable[[Any, str], Any]  # encodes a value inside another, named by where it sits

PATHS = {cls.__name__: cls for cls in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)}
SEQUENCES: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
PAIRS: dict[str, Callable[[Any], Any]] = {"dict": dict, "counter": lambda pairs: Counter(dict(pairs)), "ordered": OrderedDict}


def to_json(value: Any, tensors: dict[str, Tensor] | None, axis: str, prefix: str = "values") -> Any:
    """The value as JSON. Its tensors and arrays are put into `tensors`, under keys that begin with `prefix`.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque, Counter, OrderedDict,
            numpy scalars and arrays, tensors (they come back on the CPU), torch.Size, dtypes, devices, dates and times, paths.
        tensors: None where no tensor may be in it.
        axis: what the value is called in a refusal.

    Raises:
        CheckpointError: something in it is of another type; the axis is its path, such as `extras.config.fn`.
    """
    return _Encoder(tensors, prefix)(value, axis, 0)


def from_json(data: Any, read: Callable[[str], Tensor]) -> Any:
    """The value that `to_json` was given; `read` returns the tensor of a key. Raises CheckpointError where it is malformed."""
    try:
        return _Decoder(read)(data)
    except MALFORMED as error:
        if isinstance(error, CheckpointError):
            raise
        why = f"a value in it is malformed ({type(error).__name__}: {error})"
        raise CheckpointError.of("checkpoint", "values", why, "load another checkpoint") from error


@final
@frozen
class _Encoder:
    tensors: dict[str, Tensor] | None
    prefix: str

    def __call__(self, value: Any, axis: str, depth: int) -> Any:
        kind = type(value)
        if _as_it_is(value):
            return value
        if depth > DEPTH:
            raise CheckpointError.of(axis[:200], kind.__name__, f"it is nested over {DEPTH} deep, or contains itself", REMEDY)

        def child(inner: Any, step: str) -> Any:
            return self(inner, (axis + step).removeprefix("."), depth + 1)

        if kind is list:
            return _items(value, child)
        if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: child(inner, _step(key)) for key, inner in value.items()}
        if kind in (Tensor, np.ndarray):
            return self._stored(value, axis)
        name, encode = _encoder(value, axis)
        return {f"${name}": encode(value, child)}

    def _stored(self, value: Tensor | np.ndarray[Any, Any], axis: str) -> Any:
        if self.tensors is None:
            raise CheckpointError.of(axis, type(value).__name__, "no tensor can be kept here", "put it among the values")
        key = f"{self.prefix}/{len(self.tensors)}"
        if isinstance(value, Tensor):
            arrays.check_tensor(value, axis)
            self.tensors[key] = value.detach()
            return {"$tensor": key}
        self.tensors[key], described = arrays.array_to_tensor(value, axis)
        return {"$array": [key, *described]}


def _as_it_is(value: Any) -> bool:
    """Whether JSON has it exactly."""
    kind = type(value)
    return kind in (type(None), bool, str) or (kind is int and abs(value) <= EXACT) or (kind is float and math.isfinite(value))


def _encoder(value: Any, axis: str) -> tuple[str, Callable[[Any, Child], Any]]:
    """How its type is called, and how its content becomes JSON."""
    kind = type(value)
    if isinstance(value, np.generic) and kind not in ENCODERS:
        return "number", lambda number, _: arrays.scalar_to_json(number, axis)
    if kind not in ENCODERS:
        why = f"a {kind.__module__}.{kind.__qualname__} is no plain value"
        raise CheckpointError.of(axis, _shown(value), why, REMEDY)
    return ENCODERS[kind]


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_shown(key)}]"


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number"  # of more digits than Python shows


def _items(values: Any, child: Child) -> list[Any]:
    return [child(value, f"[{i}]") for i, value in enumerate(values)]


def _pairs(values: Any, child: Child) -> list[Any]:
    return [[child(key, f" key {_shown(key)}"), child(value, _step(key))] for key, value in values.items()]


def _float(value: float, child: Child) -> str:
    return struct.pack(">d", value).hex()  # a nan has a sign and a payload


def _datetime(value: datetime, child: Child) -> list[Any]:
    return [*value.timetuple()[:6], value.microsecond, child(value.tzinfo, ".tzinfo"), value.fold]


def _time(value: time, child: Child) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, child(value.tzinfo, ".tzinfo"), value.fold]


def _offset(value: timezone, child: Child) -> Any:
    return child(value.utcoffset(None), ".offset")


ENCODERS: dict[type[Any], tuple[str, Callable[[Any, Child], Any]]] = {
    int: ("int", lambda value, _: hex(value)),
    float: ("float", _float),
    complex: ("complex", lambda value, child: [_float(value.real, child), _float(value.imag, child)]),
    bytes: ("bytes", lambda value, _: base64.b64encode(value).decode()),
    bytearray: ("bytearray", lambda value, _: base64.b64encode(value).decode()),
    deque: ("deque", lambda value, child: [value.maxlen, _items(value, child)]),
    dict: ("dict", _pairs),
    Counter: ("counter", _pairs),
    OrderedDict: ("ordered", _pairs),
    torch.dtype: ("dtype", lambda value, _: str(value).removeprefix("torch.")),
    torch.device: ("device", lambda value, _: str(value)),
    datetime: ("datetime", _datetime),
    time: ("time", _time),
    date: ("date", lambda value, _: value.isoformat()),
    timedelta: ("timedelta", lambda value, _: [value.days, value.seconds, value.microseconds]),
    timezone: ("timezone", _offset),
    np.str_: ("text", lambda value, _: str.__str__(value)),  # numpy itself drops zeros at the end
    np.bytes_: ("octets", lambda value, _: base64.b64encode(value).decode()),
    **{cls: (name, _items) for name, cls in SEQUENCES.items()},
    **{cls: ("path", lambda value, _: [type(value).__name__, str(value)]) for cls in PATHS.values()},
}


@final
@frozen
class _Decoder:
    """Each tensor is given out once, as it was stored: a thousand mentions of one are an attack on memory."""

    read: Callable[[str], Tensor]
    given: set[str] = field(factory=set)

    def once(self, key: str) -> Tensor:
        if key in self.given:
            raise ValueError(f"{key} is in it twice")
        self.given.add(key)
        return self.read(key)

    def __call__(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self(item) for item in data]
        if not isinstance(data, dict):
            return data
        name, content = next(iter(data.items()), ("", None))
        if not name.startswith("$"):
            return {key: self(value) for key, value in data.items()}
        (content,) = data.values()
        if name[1:] in SEQUENCES:
            return SEQUENCES[name[1:]](self(item) for item in _list(content))
        if name[1:] in PAIRS:
            return PAIRS[name[1:]]([(self(key), self(value)) for key, value in _list(content)])
        return DECODERS[name[1:]](content, self)


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"{type(content).__name__} is not a list")
    return content


def _to_float(content: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(content))[0])


def _to_dtype(content: str) -> torch.dtype:
    found = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return found[f"torch.{content}"]


def _to_path(content: list[str]) -> Any:
    name, text = content
    return Path(text) if name == type(Path()).__name__ else PATHS[name](text)


def _to_array(content: list[Any], read: Callable[[str], Tensor]) -> Any:
    key, dtype, shape = content
    return arrays.tensor_to_array(read(key), dtype, shape)


DECODERS: dict[str, Callable[[Any, _Decoder], Any]] = {
    "int": lambda content, _: int(content, 16),
    "float": lambda content, _: _to_float(content),
    "complex": lambda content, _: complex(*map(_to_float, content)),
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "bytearray": lambda content, _: bytearray(base64.b64decode(content, validate=True)),
    "deque": lambda content, decode: deque(decode(_list(content[1])), content[0]),
    "dtype": lambda content, _: _to_dtype(content),
    "device": lambda content, _: torch.device(content),
    "datetime": lambda content, decode: datetime(*content[:7]).replace(tzinfo=decode(content[7]), fold=content[8]),
    "time": lambda content, decode: time(*content[:4]).replace(tzinfo=decode(content[4]), fold=content[5]),
    "date": lambda content, _: date.fromisoformat(content),
    "timedelta": lambda content, _: timedelta(*content),
    "timezone": lambda content, decode: timezone(decode(content)),
    "path": lambda content, _: _to_path(content),
    "text": lambda content, _: np.str_(content),
    "octets": lambda content, _: np.bytes_(base64.b64decode(content, validate=True)),
    "number": lambda content, _: arrays.scalar_from_json(content),
    "tensor": lambda content, decode: decode.once(content),
    "array": lambda content, decode: _to_array(content, decode.once),
}


def decode_mapping(data: Any, read: Callable[[str], Tensor]) -> Mapping[str, Any]:
    """As `from_json`, where a mapping with names must come out."""
    value = from_json(data, read)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CheckpointError.of("checkpoint", type(value).__name__, "its values have no names", "load another checkpoint")
    return value
