"""How a value given is read: what is converted, what is refused, and where each limit lies."""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from restoke import configs as c
from restoke.errors import SpecError


@pytest.mark.parametrize("given", [5e8, "5e8", "500000000", " 500000000 ", np.int64(5e8), np.float32(5e8), Fraction(5 * 10**8)])
def test_a_whole_number_is_stored_as_an_int(given: Any) -> None:
    stored = c.DeepspeedZeROConfig(reduce_bucket_size=given).reduce_bucket_size
    assert (stored, type(stored)) == (500_000_000, int)


@pytest.mark.parametrize("given", [2, 2.0, "2", "2.0", np.float64(2), np.int32(2)])
def test_a_number_is_stored_as_a_float(given: Any) -> None:
    stored = c.HorovodConfig(gradient_predivide_factor=given).gradient_predivide_factor
    assert (stored, type(stored)) == (2.0, float)


@pytest.mark.parametrize("given", [True, np.True_, np.float32("nan"), "1_", 3 + 0j])
@pytest.mark.parametrize("field", ["growth_interval", "init_scale"])
def test_what_only_looks_like_a_number_is_refused(field: str, given: Any) -> None:
    with pytest.raises(SpecError, match=rf"AMPConfig.{field}"):
        c.AMPConfig(**{field: given})


def test_an_integer_of_any_size_is_kept_exactly() -> None:
    assert c.DeepspeedZeROConfig(sub_group_size=10**400 + 1).sub_group_size == 10**400 + 1
    assert c.DeepspeedZeROConfig(sub_group_size=str(2**60 + 1)).sub_group_size == 2**60 + 1


def test_a_norm_may_be_infinite() -> None:
    assert c.ClipGradNormConfig(1.0, math.inf) == c.ClipGradNormConfig("1", "inf")
    assert c.ClipGradNormConfig(math.inf).max_norm == math.inf
    assert c.ClipGradNormConfig(10**400).max_norm == math.inf
    with pytest.raises(SpecError, match=r"ClipGradConfig.clip_value=inf: it is not finite"):
        c.ClipGradConfig(math.inf)


class Foreign(Enum):
    gloo = "gloo"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (c.BackendOptions.gloo, "gloo"),
        (c.BackendOptions.gloo.value, "gloo"),
        ("GLOO", "gloo"),
        (Foreign.gloo, "gloo"),
        (" mpi", "mpi"),
        ("mpi", "mpi"),
        ("NCCL", "nccl"),
    ],
)
def test_a_choice_is_taken_as_member_or_value_in_any_case(given: Any, stored: str) -> None:
    for value in (c.DDPConfig(backend=given).backend, c.DeepspeedConfig(dist_backend=given).dist_backend):
        assert (value, type(value)) == (stored, str)


def test_other_choices_are_read_alike() -> None:
    assert c.HorovodConfig(op=c.HorovodOps.Adasum).op == c.HorovodConfig(op="adasum").op == "Adasum"
    assert c.DeepspeedOffloadParamConfig(device=c.OffloadDevice.nvme).device == "nvme"
    assert c.DeepspeedOffloadOptimizerConfig(device="none").device == "none"


def test_a_mistyped_choice_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"DDPConfig.backend='glo': there is no such choice. Instead: did you mean 'gloo'"):
        c.DDPConfig(backend="glo")


@pytest.mark.parametrize("given", [torch.bfloat16, "torch.bfloat16", "bfloat16"])
def test_a_dtype_is_stored_by_name(given: Any) -> None:
    made = c.FairscaleFSDPConfig(compute_dtype=given, buffer_dtype=given)
    assert (made.compute_dtype, made.buffer_dtype) == ("bfloat16", "bfloat16")
    assert c.ApexConfig(given).cast_model_outputs == "bfloat16"


@pytest.mark.parametrize("given", [torch.int64, "int8", "half!", torch.float16.is_complex])
def test_what_is_no_floating_dtype_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"ApexConfig.cast_model_outputs"):
        c.ApexConfig(cast_model_outputs=given)


@pytest.mark.parametrize("name", ["bf16", "fp16", "powersgd", "mine:hook", "my.module:Hooks.fast"])
def test_a_communication_hook_is_a_name_or_a_place(name: str) -> None:
    assert c.DDPConfig(comm_hook=name).comm_hook == name
    assert c.DDPConfig(comm_hook="BF16").comm_hook == "bf16"


@pytest.mark.parametrize("name", ["fp8", "mine.hook", "a:", ":b", "a:b:c", "a b:c", "a:b()", "a..b:c"])
def test_any_other_hook_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"DDPConfig.comm_hook=.*module:function"):
        c.DDPConfig(comm_hook=name)


def test_a_path_is_stored_as_a_text() -> None:
    made = c.DeepspeedTensorboardConfig(Path("runs") / "1", job_name=c.FP16Options.amp)
    assert (made.output_path, made.job_name, type(made.job_name)) == (str(Path("runs") / "1"), "amp", str)


def test_a_local_rank_may_come_from_the_environment() -> None:
    assert c.DDPConfig("3").local_rank == 3
    assert c.DDPConfig(local_rank=None).local_rank is None
    with pytest.raises(SpecError, match=r"DDPConfig.local_rank=-1: it must be >= 0"):
        c.DDPConfig("-1")


LIMITS = [  # a field, what it just takes, and what it just refuses
    (c.AMPConfig, "backoff_factor", (1e-9, 1 - 1e-9), (0, 1)),
    (c.AMPConfig, "growth_factor", (1 + 1e-9,), (1, 0.5)),
    (c.AMPConfig, "growth_interval", (1,), (0,)),
    (c.AMPConfig, "init_scale", (1e-9,), (0,)),
    (c.ClipGradConfig, "clip_value", (1e-9,), (0, -1)),
    (c.ClipGradNormConfig, "max_norm", (1e-9,), (0, -1)),
    (c.DDPConfig, "bucket_cap_mb", (1,), (0,)),
    (c.DDPConfig, "init_method", ("tcp://10.0.0.1:29500", "file:///tmp/x"), ("env", "here:1")),
    (c.DeepspeedZeROConfig, "stage", (0, 1, 2, 3), (-1, 4, 1.5)),
    (c.DeepspeedConfig, "distributed_port", (1, 65535), (0, 65536)),
    (c.DeepspeedPLDConfig, "theta", (1e-9, 1), (0, 1.01)),
    (c.DeepspeedFlopsConfig, "module_depth", (-1, 0), (-2,)),
    (c.DeepspeedFP16Config, "loss_scale", (0, 1024), (-1,)),
    (c.FairscaleFSDPConfig, "bucket_cap_mb", (-1, 0, 25), (0.5,)),
    (c.FairscaleSDDPConfig, "reduce_buffer_size", (0,), (-1,)),
]


@pytest.mark.parametrize(("cls", "field", "taken", "refused"), LIMITS, ids=lambda x: x if isinstance(x, str) else None)
def test_limits_lie_where_they_should(cls: type[Any], field: str, taken: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    rest = {"max_norm": 1.0} if cls is c.ClipGradNormConfig else {}
    for value in taken:
        assert getattr(cls(**{**rest, field: value}), field) == value
    for value in refused:
        with pytest.raises(SpecError, match=rf"^{cls.__name__}.{field}="):
            cls(**{**rest, field: value})


def test_the_message_reads_well() -> None:
    with pytest.raises(SpecError) as caught:
        c.DDPConfig(bucket_cap_mb=0)
    said = "DDPConfig.bucket_cap_mb=0: it must be >= 1. Instead: give a value within that limit, such as the default, 25."
    assert str(caught.value) == said
