"""The words that stand for a choice. Each member equals its value, so that either may be passed."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Annotated

from restoke.configs.validate import one_of


class DistributedOptions(StrEnum):
    """How the work is spread over processes."""

    horovod = "horovod"
    ddp = "ddp"
    deepspeed = "deepspeed"


class FP16Options(StrEnum):
    """Whose mixed precision in float16 is used: Apex's levels, torch's own ("amp"), or DeepSpeed's."""

    apex_O1 = "apex_O1"  # noqa: N815 - the name that scripts write
    apex_O2 = "apex_O2"  # noqa: N815
    amp = "amp"
    deepspeed = "deepspeed"


class HorovodOps(StrEnum):
    """How Horovod combines the gradients of all ranks."""

    Average = "Average"
    Sum = "Sum"
    Adasum = "Adasum"


class OffloadDevice(StrEnum):
    """Where DeepSpeed keeps what it takes off the GPU."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class BackendOptions(StrEnum):
    """The library that carries the collectives."""

    nccl = "nccl"
    mpi = "mpi"
    gloo = "gloo"


class ParamNormalize(float, Enum):
    """The unit in which a number of parameters is told."""

    THOUSAND = 1e3
    MILLION = 1e6
    BILLION = 1e9
    TRILLION = 1e12


Backend = Annotated[str, one_of(BackendOptions)]
Device = Annotated[str, one_of(OffloadDevice)]
Op = Annotated[str, one_of(HorovodOps)]
