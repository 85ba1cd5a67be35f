"""The flags of a spec, made from its fields: a new field is a flag by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from restoke.errors import SpecError
from restoke.spec import Spec

SETTINGS = "settings"  # not one value but a tree of them: `--set KEY.FIELD=VALUE`


def _flag(axis: attrs.Attribute[Any]) -> Any:
    default = "" if axis.default is None else f" [default: {axis.default}]"
    name = "--" + axis.name.replace("_", "-")
    told = Parameter(name=name, help=axis.metadata["help"] + default, group="What to run", show_default=False, metavar="VALUE")
    return attrs.field(default=None, type=Annotated[str | None, told])  # type: ignore[call-overload]


AXES = [axis for axis in attrs.fields(Spec) if axis.name != SETTINGS]

# One optional text for each axis: the spec itself converts it and refuses what it cannot be.
Flags = attrs.make_class("Flags", {axis.name: _flag(axis) for axis in AXES}, frozen=True, kw_only=True)


def declared(flags: Any, assignments: Sequence[str]) -> dict[str, Any]:
    """The partial spec of the flags that were given. `none` takes back what a file or the script says, where that can be."""
    given = {axis.name: _value(text, axis) for axis in AXES if (text := getattr(flags, axis.name)) is not None}
    spec = Spec.of(given, "the command line")
    plain = {name: getattr(spec, name) for name in given} | {k: v for k, v in spec.declared().items() if k in given}
    return plain | ({SETTINGS: settings(assignments)} if assignments else {})


def _value(text: str, axis: attrs.Attribute[Any]) -> str | None:
    return None if text.lower() == "none" and axis.default is None else text


def settings(assignments: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    """`ddp.bucket_cap_mb=50` as a spec file has it, the value read as YAML. Raises SpecError for any other form."""
    import yaml

    found: dict[str, dict[str, Any]] = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        key, dot, name = path.partition(".")
        if not (equals and dot and key and name):
            raise SpecError.of("set", text, "it is not of the form KEY.FIELD=VALUE", "--set ddp.bucket_cap_mb=50")
        try:
            found.setdefault(key, {})[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise SpecError.of("set", text, "its value is not YAML", "quote it, as in --set 'ddp.backend=\"gloo\"'") from error
    return found
