"""The flags are the spec's fields."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from restoke.cli.flags import AXES, Flags, declared, settings
from restoke.errors import SpecError
from restoke.spec import Spec


def test_every_field_of_the_spec_is_a_flag_or_a_tree_of_settings() -> None:
    assert {axis.name for axis in AXES} | {"settings"} == {axis.name for axis in attrs.fields(Spec)}
    assert all(axis.metadata["help"] for axis in AXES)


@pytest.mark.parametrize(
    ("given", "partial"),
    [
        ({}, {}),
        ({"precision": "fp32"}, {"precision": "fp32"}),  # a default that is said still wins over the script
        ({"accumulate": "4", "seed": "7"}, {"accumulate": 4, "seed": 7}),
        ({"accumulate": "1"}, {"accumulate": 1}),
        ({"clip": "value:0.5"}, {"clip": {"clip_value": 0.5}}),
        ({"clip": "none", "seed": "None"}, {"clip": None, "seed": None}),
    ],
)
def test_only_what_was_given_is_declared(given: dict[str, str], partial: dict[str, Any]) -> None:
    assert declared(Flags(**given), []) == partial
    assert Spec.of(partial) == Spec.of({k: None if str(v).lower() == "none" else v for k, v in given.items()})


def test_settings_are_read_as_yaml_and_keep_what_equals_a_default() -> None:
    texts = ["ddp.bucket_cap_mb=25", "ddp.no_sync=false", "amp.init_scale=2.0", "ddp.backend=gloo", "x.y=a=b"]
    tree = {"ddp": {"bucket_cap_mb": 25, "no_sync": False, "backend": "gloo"}, "amp": {"init_scale": 2.0}, "x": {"y": "a=b"}}
    assert settings(texts) == tree
    assert declared(Flags(), texts) == {"settings": tree}


@pytest.mark.parametrize("text", ["ddp", "ddp.x", "ddp=1", ".x=1", "ddp.=1", "ddp.x=[1"])
def test_an_assignment_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="set="):
        settings([text])


@pytest.mark.parametrize(("name", "text"), [("accumulate", "four"), ("clip", "big"), ("processes", "1.5")])
def test_a_value_that_cannot_be_is_refused(name: str, text: str) -> None:
    with pytest.raises(SpecError, match=f"{name}="):
        declared(Flags(**{name: text}), [])
