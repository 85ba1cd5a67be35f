"""How a value given for a setting is read: by the type of its field into what is stored, or refused with the reason."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Union, final, get_args, get_origin, get_type_hints

import attrs
from attrs.validators import and_, ge, gt, lt

from restoke.configs.read import settings_from
from restoke.errors import SpecError, nearest

Read = Callable[[Any, str], Any]  # the value as given and the axis it is for -> the value as stored

Check = Callable[[Any, "attrs.Attribute[Any]", Any], Any]  # a validator of attrs

positive: Check = gt(0)
at_least_one: Check = ge(1)
not_negative: Check = ge(0)
fraction: Check = and_(gt(0), lt(1))


def flag(value: Any, axis: str) -> bool:
    """True or False, and nothing that only looks like it."""
    if not isinstance(value, bool):
        raise SpecError.of(axis, value, "it is neither True nor False", "give True or False")
    return value


def whole(value: Any, axis: str) -> int:
    """An integer: also a float that is whole (5e8), and text that says one (of an environment variable, or YAML's 5e8)."""
    number = _real(value)
    if number is None or (isinstance(number, float) and not number.is_integer()):
        raise SpecError.of(axis, value, "it is not a whole number", "give an integer")
    return int(number)


def finite(value: Any, axis: str) -> float:
    """A float that is a number and not infinite."""
    number = extended(value, axis)
    if math.isinf(number):
        raise SpecError.of(axis, value, "it is not finite", "give a number")
    return number


def extended(value: Any, axis: str) -> float:
    """A float that may be infinite; JSON, which has no such number, says it as the text "inf"."""
    number = _real(value)
    if number is None:
        raise SpecError.of(axis, value, "it is not a number", "give a number")
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def text(value: Any, axis: str) -> str:
    """A text or a path."""
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(plain, str):
        raise SpecError.of(axis, value, "it is not a text", "give a str")
    return str.__str__(plain)


def url(value: Any, axis: str) -> str:
    """A URL such as env:// or tcp://host:port."""
    plain = text(value, axis)
    if "://" not in plain:
        raise SpecError.of(axis, value, "it is not a URL", "env://, or one such as tcp://host:29500")
    return plain


def dtype(value: Any, axis: str) -> str:
    """The name of a floating dtype of torch: "float16", "torch.float16", or torch.float16 itself."""
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise SpecError.of(axis, value, "it is not the name of a floating dtype of torch", nearest(name, DTYPES))
    return name


DTYPES = ("float16", "bfloat16", "float32", "float64")


@final
@attrs.frozen
class OneOf:
    """Reads a name out of a few: a member of their enum or its value, in any case; stored as the value."""

    names: tuple[str, ...]

    def __call__(self, value: Any, axis: str) -> str:
        word = value.value if isinstance(value, Enum) else value
        if isinstance(word, str):
            for name in self.names:
                if name.lower() == word.strip().lower():
                    return name
        raise SpecError.of(axis, value, "there is no such choice", nearest(word, self.names))


def one_of(choices: type[Enum]) -> OneOf:
    """Reads the members of this enum."""
    return OneOf(tuple(member.value for member in choices))


def _real(value: Any) -> int | float | None:
    """The number that a value is or, being text, says; None where it is none, or NaN."""
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return None if math.isnan(number) else number


BY_TYPE: dict[Any, Read] = {bool: flag, int: whole, float: finite, str: text}


@cache
def readers(cls: type) -> dict[str, Read]:
    """How each field of a settings class is read. Raises TypeError for a field whose type does not say it."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: _reader(hints[field.name], f"{cls.__name__}.{field.name}") for field in attrs.fields(cls)}


def _reader(hint: Any, where: str) -> Read:
    if get_origin(hint) is Annotated:
        read: Read = hint.__metadata__[0]
        return read
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        (inner,) = (part for part in get_args(hint) if part is not NoneType)
        return _or_none(_reader(inner, where))
    if isinstance(hint, type) and attrs.has(hint):
        return _nested(hint)
    if hint not in BY_TYPE:
        raise TypeError(f"{where}: settings cannot read the type {hint}; write Annotated[{hint}, read]")
    return BY_TYPE[hint]


def _or_none(read: Read) -> Read:
    return lambda value, axis: None if value is None else read(value, axis)


def _nested(cls: type[Any]) -> Read:
    return lambda value, axis: value if isinstance(value, cls) else settings_from(cls, value, axis)


def check(field: attrs.Attribute[Any], instance: Any, value: Any) -> None:
    """Let the field's attrs validator see the value as stored. Raises SpecError, whose axis is the class and the field."""
    if field.validator is None:
        return
    try:
        field.validator(instance, field, value)
    except SpecError:
        raise
    except (TypeError, ValueError) as error:
        # attrs says "'name' must be >= 1: 0"; name and value stand in our message already
        why = str(error.args[0]).removeprefix(f"'{field.name}' ").removesuffix(f": {value!r}")
        instead = "give a value within that limit"
        if isinstance(field.default, bool | int | float | str):
            instead += f", such as the default, {field.default!r}"
        raise SpecError.of(f"{type(instance).__name__}.{field.alias}", value, f"it {why}", instead) from error
