"""Every settings class and field, found by introspection, with values that fit it and values that do not."""

from __future__ import annotations

import math
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen
from hypothesis import strategies as st

from restoke.configs import SETTINGS, ClipGradConfig, ClipGradNormConfig
from restoke.configs.tensor import plan
from restoke.configs.validate import DTYPES, OneOf, dtype, extended, url

ANYTHING = object()
READ: dict[Any, st.SearchStrategy[Any]] = {
    dtype: st.sampled_from(DTYPES),
    url: st.sampled_from(("tcp://here:1", "file:///tmp/x")),
    plan: st.dictionaries(st.text("ab.*", min_size=1), st.sampled_from(("columns", "rows", "sequence"))),
}
NUMBERS = (-2, -1, 0, 1, 2.5, 70000)


@frozen
class Field:
    """A field of a settings class: its type without `| None`, and whether None is allowed."""

    cls: type[Any]
    name: str
    hint: Any
    optional: bool
    limited: bool

    def __str__(self) -> str:
        return f"{self.cls.__name__}.{self.name}"

    def make(self, value: Any) -> Any:
        return self.cls(**{**required(self.cls), self.name: value})

    @property
    def default(self) -> Any:
        return getattr(self.cls(**required(self.cls)), self.name)


def required(cls: type[Any]) -> dict[str, Any]:
    return {field.name: 1.0 for field in attrs.fields(cls) if field.default is attrs.NOTHING}


def fields_of(cls: type[Any]) -> list[Field]:
    found = []
    hints = get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cls):
        hint = hints[field.name]
        parts = () if get_origin(hint) is Annotated else get_args(hint)
        core = next((part for part in parts if part is not NoneType), hint)
        found.append(Field(cls, field.name, core, NoneType in parts, field.validator is not None))
    return found


def _with_sections(cls: type[Any]) -> list[type[Any]]:
    return [cls, *(inner for field in fields_of(cls) if attrs.has(field.hint) for inner in _with_sections(field.hint))]


CLASSES = [c for cls in (ClipGradConfig, ClipGradNormConfig, *SETTINGS.values()) for c in _with_sections(cls)]
FIELDS = [field for cls in CLASSES for field in fields_of(cls)]


def reader(field: Field) -> Any:
    return field.hint.__metadata__[0] if get_origin(field.hint) is Annotated else None


def wrong_values(field: Field) -> list[Any]:
    """Values that no field of this type may take."""
    always = [ANYTHING, [], b"1", *([] if field.optional else [None])]
    if attrs.has(field.hint):
        return [*always, 3, "x", True]
    if reader(field) not in (None, extended):
        return [*always, 3, True, "no such word", ""]
    return {
        bool: [*always, 0, 1, 1.0, "true", "", {}],
        int: [*always, True, 1.5, "1.5", math.nan, math.inf, "many", "", {}],
        str: [*always, 3, True, {}],
    }.get(
        field.hint, [*always, False, math.nan, "nan", "many", "", {}, *([] if reader(field) else [math.inf, "-inf", 10**400])]
    )


def values(field: Field) -> st.SearchStrategy[Any]:
    """Values that the field takes."""
    if attrs.has(field.hint):
        fitting = instances(field.hint)
    elif isinstance(reader(field), OneOf):
        fitting = st.sampled_from(reader(field).names)
    elif reader(field) in READ:
        fitting = READ[reader(field)]
    elif reader(field) not in (None, extended):
        fitting = st.sampled_from(("bf16", "powersgd", "my.module:hooks.fast"))
    elif field.hint is bool:
        fitting = st.booleans()
    elif field.hint is str:
        fitting = st.text(st.characters(exclude_categories=["Cs", "Cc"]))
    elif field.hint is int:
        fitting = st.one_of(st.integers(0, 3), st.integers(1, 65535), st.integers(-1, 10**13))
    else:
        fitting = st.one_of(st.floats(0, 1), st.floats(1, 1e300), *([st.just(math.inf)] if reader(field) else []))
    fitting = fitting.filter(lambda value: not field.limited or _fits(field, value))
    return st.none() | fitting if field.optional else fitting


def _fits(field: Field, value: Any) -> bool:
    try:
        field.make(value)
    except ValueError:
        return False
    return True


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Settings of this class with any of its fields given."""
    given = {field.name: values(field) for field in fields_of(cls)}
    needed = {name: given.pop(name) for name in required(cls)}
    return st.fixed_dictionaries(needed, optional=given).map(lambda fields: cls(**fields))
