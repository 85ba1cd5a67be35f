"""YAML is read as it is meant: a name that is given twice is refused, and an alias is no second time."""

from __future__ import annotations

import pytest
import yaml

from restoke.configs.yaml_text import read_yaml
from restoke.errors import SpecError

ONCE = ["", "text", "a: 1\nb: {a: 1}\nc: [{a: 1}, {a: 2}]", "a: &x {b: 1}\nc: *x", "a: &x {b: 1}\nc: {<<: *x, b: 2}"]
TWICE = [("a: 1\na: 1", "a"), ("a: [{b: 1, b: 2}]", "a.b"), ("a: {b: &x {c: 1, c: [1]}, d: *x}", "a.b.c")]


@pytest.mark.parametrize("text", ONCE)
def test_what_is_given_once_is_read(text: str) -> None:
    assert read_yaml(text, "here") == yaml.safe_load(text)


@pytest.mark.parametrize(("text", "axis"), TWICE)
def test_what_is_given_twice_is_refused(text: str, axis: str) -> None:
    with pytest.raises(SpecError, match="here has it on line . and again on line") as caught:
        read_yaml(text, "here")
    assert [problem.axis for problem in caught.value.problems] == [axis]


def test_a_list_that_holds_itself_comes_to_an_end() -> None:
    assert read_yaml("a: &x [1, *x]", "here")["a"][0] == 1


def test_no_object_of_pythons_is_made() -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml("!!python/object/apply:os.getpid []", "here")
