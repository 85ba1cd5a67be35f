"""Reads YAML as plain values, and refuses a name that is given twice, of which YAML itself would keep the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from restoke.errors import Problem, SpecError

if TYPE_CHECKING:
    import yaml


def read_yaml(text: str, where: str) -> Any:
    """What a YAML text holds; it can name no Python object. `where` is the file, for messages.

    Raises:
        SpecError: with every name that a mapping has twice.
        yaml.YAMLError: it is not YAML.
    """
    import yaml

    found = list(_twice(yaml.compose(text, Loader=yaml.SafeLoader), "", where, set()))
    if found:
        raise SpecError(*found)
    return yaml.safe_load(text)


def _twice(node: yaml.Node | None, axis: str, where: str, seen: set[int]) -> Iterator[Problem]:
    """A problem for each name that this node, or one inside it, has once more."""
    if node is None or isinstance(node.value, str) or id(node) in seen:
        return
    seen.add(id(node))  # an alias may lead back to what it is in
    lines: dict[str, int] = {}
    for name, value in ((_name(item[0]), item[1]) if isinstance(item, tuple) else ("", item) for item in node.value):
        there = f"{axis}.{name}".strip(".")
        line = value.start_mark.line + 1
        if name in lines:
            got = value.value if isinstance(value.value, str) else "..."
            yield Problem(there, got, f"{where} has it on line {lines[name]} and again on line {line}", "give it once")
        if name:
            lines[name] = line
        yield from _twice(value, there, where, seen)


def _name(key: yaml.Node) -> str:
    return key.value if isinstance(key.value, str) else ""
