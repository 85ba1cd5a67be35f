"""Settings that another package declares are read and refused like our own."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import pytest

from restoke.configs import settings
from restoke.errors import SpecError


def words(value: Any, axis: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise SpecError.of(axis, value, "it is no list", "give a list of words")
    return tuple(value)


def even(instance: Any, field: attrs.Attribute[Any], value: int) -> None:
    if value % 2:
        raise ValueError("must be even")


def friendly(instance: Any, field: attrs.Attribute[Any], value: int) -> None:
    raise SpecError.of("Foreign.cross", value, "never", "nothing")


@settings
class Foreign:
    layers: Annotated[tuple[str, ...], words] = ()
    size: int = attrs.field(default=2, validator=even)
    _hidden: float = 0.0


@settings
class Refusing:
    cross: int | None = attrs.field(default=None, validator=attrs.validators.optional(friendly))


def test_a_field_may_bring_its_own_reader() -> None:
    assert Foreign(["a", "b"]).layers == ("a", "b")
    with pytest.raises(SpecError, match=r"Foreign.layers=3: it is no list"):
        Foreign(layers=3)


def test_an_error_of_any_attrs_validator_becomes_a_refusal() -> None:
    assert Foreign(size=4).size == 4
    with pytest.raises(SpecError, match=r"Foreign.size=3: it must be even. Instead: .* the default, 2"):
        Foreign(size=3)
    with pytest.raises(SpecError, match=r"^Foreign.cross=1: never. Instead: nothing.$"):
        Refusing(cross=1)


def test_a_private_field_has_its_public_name() -> None:
    assert repr(Foreign(hidden=2)) == "Foreign(hidden=2.0)"


def test_a_type_that_cannot_be_read_is_an_error_of_the_class() -> None:
    @settings
    class Unreadable:
        things: dict[str, int] = attrs.field(factory=dict)

    with pytest.raises(TypeError, match=r"Unreadable.things: settings cannot read the type dict\[str, int\]"):
        Unreadable(things={})
