"""Stoke's flags and restoke's words stand for each other, and Stoke's rules hold."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import pytest

from restoke import (
    AMPConfig,
    ClipGradConfig,
    ClipGradNormConfig,
    DeepspeedConfig,
    DeepspeedZeROConfig,
    DistributedOptions,
    FP16Options,
    Spec,
)
from restoke.errors import SpecError
from restoke.facades.stoke.flags import FP16, STRATEGIES, Flags, fp16_of, placement_of, read_flags
from restoke.table import PRECISIONS, rows


def flags(**given: Any) -> Flags:
    names = ("gpu", "fp16", "distributed", "oss", "sddp", "fsdp", "grad_clip", "configs")
    defaults = dict.fromkeys(names, False) | {"fp16": None, "distributed": None, "grad_clip": None, "configs": None}
    return read_flags(**defaults | given)


def zero(stage: int) -> list[DeepspeedConfig]:
    return [DeepspeedConfig(zero_optimization=DeepspeedZeROConfig(stage=stage))]


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ({}, "single"),
        ({"distributed": "ddp"}, "ddp"),
        ({"distributed": "horovod"}, "horovod"),
        ({"distributed": "ddp", "oss": True}, "oss"),
        ({"distributed": "ddp", "oss": True, "sddp": True}, "sddp"),
        ({"distributed": "ddp", "fsdp": True}, "fairscale-fsdp"),
        ({"distributed": "deepspeed"}, "deepspeed-0"),  # B6: without a DeepspeedConfig, Stoke compared None with 0
        ({"distributed": "deepspeed", "configs": [DeepspeedConfig(zero_optimization=None)]}, "deepspeed-0"),  # B7
        ({"distributed": "deepspeed", "configs": [AMPConfig(), *zero(3)]}, "deepspeed-3"),
        *(({"distributed": "deepspeed", "configs": zero(stage)}, f"deepspeed-{stage}") for stage in range(4)),
    ],
)
def test_flags_stand_for_a_strategy_and_it_for_them(given: dict[str, Any], strategy: str) -> None:
    asked = flags(**given)
    assert asked.strategy() == strategy
    back = placement_of(Spec(strategy=strategy))
    assert (back.distributed, back.oss, back.sharded, back.fully_sharded) == (
        asked.distributed,
        asked.fairscale_oss,
        asked.fairscale_sddp,
        asked.fairscale_fsdp,
    )


def test_every_strategy_and_precision_in_the_tables_exists() -> None:
    assert STRATEGIES.keys() <= rows().keys()
    assert FP16.keys() <= PRECISIONS.keys()


def test_a_strategy_that_stoke_never_had_is_called_by_its_own_name() -> None:
    assert placement_of(Spec(strategy="fsdp")).distributed == "fsdp"
    assert not placement_of(Spec(strategy="fsdp")).fully_sharded


@pytest.mark.parametrize(
    ("strategy", "precision", "option"),
    [
        ("single", "fp32", None),
        ("single", "fp16", "amp"),
        ("single", "apex-O1", "apex_O1"),
        ("single", "apex-O2", "apex_O2"),
        ("single", "bf16", "bf16"),
        ("single", "bf16-true", "bf16-true"),
        ("single", "tf32", None),
        ("deepspeed-2", "fp16", "deepspeed"),
        ("deepspeed-2", "bf16", "bf16"),
    ],
)
def test_a_precision_is_told_as_the_option_that_it_had(strategy: str, precision: str, option: str | None) -> None:
    assert fp16_of(Spec(strategy=strategy, precision=precision)) == option


# B34, B44: members were accepted at first, and were a KeyError later
@pytest.mark.parametrize("option", [*DistributedOptions, *FP16Options])
def test_an_option_is_a_member_or_its_value(option: Enum) -> None:
    axis = "distributed" if isinstance(option, DistributedOptions) else "fp16"
    assert flags(**{axis: option}) == flags(**{axis: option.value}) != flags()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"distributed": "dpp"}, "distributed='dpp': there is no such choice. Instead: did you mean 'ddp'"),
        ({"distributed": 3}, "distributed=3: there is no such choice. Instead: one of: "),
        ({"distributed": "zero1"}, "distributed='zero1': Stoke has no such option. Instead: strategy='zero1'."),
        ({"fp16": "bf16"}, "fp16='bf16': Stoke has no such option. Instead: precision='bf16'."),
        ({"fp16": "apex_01"}, "did you mean 'apex_O1'"),
        ({"gpu": "yes"}, "gpu='yes': it is neither True nor False. Instead: give True or False."),
        ({"oss": 1}, "fairscale_oss=1: it is neither True nor False"),
        ({"grad_clip": "much"}, "clip='much': it is neither a number nor norm:NUMBER nor value:NUMBER"),  # R0
        ({"grad_clip": object}, "it is neither a number"),
        ({"configs": 5}, "settings=5: it is not a list of settings"),
        ({"configs": [object()]}, "object is not the settings of a strategy or a precision"),  # B53
        ({"configs": [*zero(1), *zero(2)]}, "settings of deepspeed are given twice"),  # B53
    ],
)
def test_what_is_no_flag_is_refused_with_the_right_word(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        flags(**given)


NO_DDP = ("distributed", "FairScale shards over the processes of DDP")


@pytest.mark.parametrize(
    ("given", "blamed"),
    [
        ({"distributed": "ddp", "sddp": True}, [("fairscale_sddp", "which OSS shards")]),  # R6
        ({"distributed": "ddp", "fsdp": True, "oss": True}, [("fairscale_fsdp", "by itself")]),  # R7
        ({"distributed": "ddp", "fsdp": True, "oss": True, "sddp": True}, [("fairscale_fsdp", "by itself")]),
        ({"distributed": "ddp", "fsdp": True, "sddp": True}, [("fairscale_sddp", "OSS"), ("fairscale_fsdp", "by itself")]),
        ({"distributed": "ddp", "oss": True, "fp16": "apex_O1"}, [("fp16", "does not work with Apex")]),  # R8
        ({"distributed": "ddp", "fsdp": True, "fp16": "apex_O2"}, [("fp16", "does not work with Apex")]),
        ({"distributed": "ddp", "oss": True, "grad_clip": ClipGradConfig(1.0)}, [("grad_clip", "by their norm")]),  # R9
        ({"distributed": "ddp", "fsdp": True, "grad_clip": "value:1"}, [("grad_clip", "by their norm")]),
        ({"fp16": "deepspeed"}, [("fp16", "a part of its engine")]),  # R10
        ({"fp16": "deepspeed", "distributed": "ddp"}, [("fp16", "a part of its engine")]),
        ({"fp16": "amp", "distributed": "deepspeed"}, [("fp16", "its own mixed precision")]),  # R11
        ({"oss": True}, [NO_DDP]),  # R5
        ({"oss": True, "distributed": "horovod"}, [NO_DDP]),
        ({"fsdp": True, "distributed": "deepspeed"}, [NO_DDP]),  # R2
        ({"sddp": True, "fp16": "apex_O1"}, [("fairscale_sddp", "OSS"), NO_DDP, ("fp16", "Apex")]),
    ],
)
def test_what_stokes_rules_refuse_is_refused_all_at_once(given: dict[str, Any], blamed: list[tuple[str, str]]) -> None:
    with pytest.raises(SpecError) as caught:
        flags(**given).strategy()
    found = caught.value.problems
    assert [problem.axis for problem in found] == [axis for axis, _ in blamed]
    assert all(why in problem.why and problem.instead for problem, (_, why) in zip(found, blamed, strict=True))


@pytest.mark.parametrize(
    "given",
    [
        {"distributed": "ddp", "oss": True, "grad_clip": ClipGradNormConfig(1.0, 2.0)},
        {"distributed": "ddp", "oss": True, "sddp": True, "fp16": "amp"},
        {"distributed": "deepspeed", "fp16": "deepspeed"},
        {"distributed": "horovod", "fp16": "apex_O1", "grad_clip": ClipGradConfig(1.0)},
        {"distributed": "ddp", "fp16": "apex_O2"},
    ],
)
def test_what_stokes_rules_allow_is_allowed(given: dict[str, Any]) -> None:
    flags(**given).strategy()
