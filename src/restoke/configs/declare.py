"""`settings`: the decorator that makes a class of settings. Frozen, read by type, and able to name what was mistyped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, dataclass_transform

import attrs

from restoke.configs.read import changed
from restoke.configs.validate import check, readers
from restoke.errors import Problem, SpecError, nearest

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def settings(cls: type[T]) -> type[T]:
    """Turn a class of annotated fields into frozen settings, given by position or by keyword in the order written.

    A field's type says what it takes: bool, int, float, str, another settings class, each also with `| None`, or
    `Annotated[type, read]`, where `read(value, axis)` returns what is stored or raises SpecError. Its attrs validator sees
    that value alone: what depends on other settings is a rule of the strategy's row.

    Raises:
        SpecError: by the class when it is called, with every name and value in it that is wrong.
    """
    made = attrs.frozen(cls, repr=False)
    plain_init: Callable[..., None] = made.__init__

    @functools.wraps(plain_init)
    def init(self: T, /, *args: Any, **kwargs: Any) -> None:
        plain_init(self, **_read(made, self, _by_name(made, args, kwargs)))

    made.__repr__ = _told  # type: ignore[method-assign]
    made.__init__ = init  # type: ignore[method-assign, assignment]
    return made


def _told(instance: Any) -> str:
    """`DDPConfig(bucket_cap_mb=50)`: what differs from the defaults, as it would be written."""
    return f"{type(instance).__name__}({', '.join(f'{name}={value!r}' for name, value in changed(instance).items())})"


def _by_name(cls: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by keyword. Raises SpecError for too many, and for one given twice."""
    names = [field.alias for field in attrs.fields(cls)]
    if len(args) > len(names):
        raise SpecError.of(cls.__name__, args, f"it has {len(names)} settings, not {len(args)}", f"give {', '.join(names)}")
    by_position = dict(zip(names, args, strict=False))
    if twice := by_position.keys() & kwargs.keys():
        name = min(twice)
        raise SpecError.of(f"{cls.__name__}.{name}", kwargs[name], "it is given by position and by keyword", "give it once")
    return by_position | kwargs


def _read(cls: type[Any], instance: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they are stored. Raises SpecError with every problem among them."""
    fields = {field.alias: field for field in attrs.fields(cls)}
    read = readers(cls)  # type: ignore[arg-type]  # mypy: a class is not Hashable
    ready: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in given.items():
        axis = f"{cls.__name__}.{name}"
        if name not in fields:
            problems.append(Problem(axis, value, "there is no such setting", nearest(name, fields)))
            continue
        try:
            ready[name] = read[fields[name].name](value, axis)
            check(fields[name], instance, ready[name])
        except SpecError as error:
            problems.extend(error.problems)
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in given:
            problems.append(Problem(f"{cls.__name__}.{name}", None, "it has no default and was not given", "give it a value"))
    if problems:
        raise SpecError(*problems)
    return ready
