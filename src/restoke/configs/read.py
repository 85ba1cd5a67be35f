"""Settings from plain values and back: what a spec file, an environment variable or a checkpoint holds of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import attrs

from restoke.errors import SpecError, nearest

T = TypeVar("T")


def settings_from(cls: type[T], mapping: Mapping[str, Any], axis: str) -> T:
    """The settings that a mapping of plain values says; `axis` is how the user calls it, such as `settings.ddp`.

    Raises:
        SpecError: with every name that does not exist and every value that does not fit, as `settings.ddp.bucket_cap_mb`.
    """
    names = [field.alias for field in attrs.fields(cls)]  # type: ignore[arg-type]
    if not isinstance(mapping, Mapping):
        raise SpecError.of(axis, mapping, "it is not a mapping of settings", f"name: value, of {', '.join(names)}")
    for name in mapping:
        if not isinstance(name, str):
            raise SpecError.of(f"{axis}.{name}", mapping[name], "there is no such setting", nearest(name, names))
    try:
        return cls(**mapping)
    except SpecError as error:
        there = [problem._replace(axis=axis + problem.axis.removeprefix(cls.__name__)) for problem in error.problems]
        raise SpecError(*there) from None
    except (TypeError, ValueError) as error:
        # a class of another package that is not made by `settings`
        raise SpecError.of(axis, dict(mapping), str(error), f"name: value, of {', '.join(names)}") from error


def settings_to(instance: Any, only_changed: bool = True) -> dict[str, Any]:
    """The settings as plain JSON values, by default those that differ from the class's own; `settings_from` gives them back."""
    values = changed(instance) if only_changed else {name: value for name, value, _ in _values(instance)}
    return {name: _plain(value, only_changed) for name, value in values.items()}


def changed(instance: Any) -> dict[str, Any]:
    """The values of the fields that differ from their defaults."""
    return {name: value for name, value, default in _values(instance) if value != default}


def _values(instance: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each field's name, value and default."""
    for field in attrs.fields(type(instance)):
        default: Any = field.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory()
        yield str(field.alias), getattr(instance, field.name), default


def _plain(value: Any, only_changed: bool) -> Any:
    if attrs.has(type(value)):
        return settings_to(value, only_changed)
    return str(value) if isinstance(value, float) and math.isinf(value) else value
