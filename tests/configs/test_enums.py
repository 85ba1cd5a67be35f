"""A member of an option and its value are the same word."""

from __future__ import annotations

import json
from enum import Enum

import pytest

from restoke.configs import BackendOptions, DistributedOptions, FP16Options, HorovodOps, OffloadDevice, ParamNormalize

WORDS: dict[type[Enum], tuple[str, ...]] = {
    DistributedOptions: ("horovod", "ddp", "deepspeed"),
    FP16Options: ("apex_O1", "apex_O2", "amp", "deepspeed"),
    HorovodOps: ("Average", "Sum", "Adasum"),
    OffloadDevice: ("none", "cpu", "nvme"),
    BackendOptions: ("nccl", "mpi", "gloo"),
}


@pytest.mark.parametrize(("options", "words"), WORDS.items(), ids=lambda x: x.__name__ if isinstance(x, type) else "")
def test_members_are_the_references_and_equal_their_values(options: type[Enum], words: tuple[str, ...]) -> None:
    assert tuple(options.__members__) == tuple(member.value for member in options) == words
    for word in words:
        member = options[word]
        assert member == word
        assert {member: 1}[word] == 1
        assert (str(member), f"{member}", json.loads(json.dumps(member))) == (word, word, word)


def test_a_unit_divides_as_member_and_as_value() -> None:
    assert {unit.name: unit.value for unit in ParamNormalize} == {
        "THOUSAND": 1e3,
        "MILLION": 1e6,
        "BILLION": 1e9,
        "TRILLION": 1e12,
    }
    assert 5e6 / ParamNormalize.MILLION == 5e6 / ParamNormalize.MILLION.value == 5
