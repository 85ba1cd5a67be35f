"""What runs, in Stoke's terms: the status, and the properties that a Stoke object echoes from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, final

import attrs
import torch
import torch.distributed as dist
from attrs import frozen

from restoke import configs
from restoke.configs import DistributedOptions, FP16Options
from restoke.facades.stoke.flags import APEX, fp16_of, placement_of
from restoke.session import Session
from restoke.spec import Clip

S = TypeVar("S")
LABELS = {
    "cuda": "CUDA available",
    "nccl": "NCCL available",
    "gpu": "GPU",
    "fp16": "Mixed precision",
    "distributed": "Distributed backend",
    "oss": "FairScale OSS",
    "sharded": "FairScale SDDP",
    "fully_sharded": "FairScale FSDP",
    "zero": "DeepSpeed ZeRO stage",
    "world_size": "World size",
    "grad_accum": "Gradient accumulation steps",
    "batch_size": "Batch size (per device)",
    "effective_batch_size": "Batch size (effective)",
    "grad_clip": "Gradient clipping",
}


@final
@frozen(kw_only=True, repr=False, eq=False)
class StokeStatus:
    """What runs, which what was declared outside the script may have changed. `status` has it by Stoke's own keys."""

    cuda: bool
    nccl: bool
    batch_size: int
    grad_accum: int
    grad_clip: Clip | None
    gpu: bool
    distributed: str | None
    zero: int | None
    oss: bool
    sharded: bool
    fully_sharded: bool
    world_size: int
    fp16: str | None

    @classmethod
    def of(cls, session: Session, batch_size: int) -> StokeStatus:
        spec, world = session.spec, session.world
        placement = placement_of(spec)
        return cls(
            cuda=torch.cuda.is_available(),
            nccl=dist.is_available() and dist.is_nccl_available(),
            batch_size=batch_size,
            grad_accum=spec.accumulate,
            grad_clip=spec.clip,
            gpu=world.device.type != "cpu",
            distributed=None if placement.distributed is None else str(placement.distributed),
            zero=placement.zero,
            oss=placement.oss,
            sharded=placement.sharded,
            fully_sharded=placement.fully_sharded,
            world_size=world.size,
            fp16=fp16_of(spec),
        )

    @property
    def status(self) -> Mapping[str, Any]:
        return MappingProxyType(attrs.asdict(self, recurse=False))

    @property
    def effective_batch_size(self) -> int:
        """Samples per optimizer step, over all processes and micro-batches."""
        return self.batch_size * self.grad_accum * self.world_size

    @property
    def is_fairscale(self) -> bool:
        return self.oss or self.sharded or self.fully_sharded

    @property
    def is_fp16_apex(self) -> bool:
        return self.fp16 in APEX

    @property
    def is_fp16_amp(self) -> bool:
        return self.fp16 == FP16Options.amp

    @property
    def is_fp16_deepspeed(self) -> bool:
        return self.fp16 == FP16Options.deepspeed

    @property
    def is_distributed_ddp(self) -> bool:
        return self.distributed == DistributedOptions.ddp

    @property
    def is_distributed_horovod(self) -> bool:
        return self.distributed == DistributedOptions.horovod

    @property
    def is_distributed_deepspeed(self) -> bool:
        return self.distributed == DistributedOptions.deepspeed

    def __repr__(self) -> str:
        return "\n".join(["STOKE STATE:", *(f"    {label}: {getattr(self, key)}" for key, label in LABELS.items())])


class Echoes(ABC):
    """The properties of a Stoke object that say what was declared."""

    session: Session  # the parts, the counters and all that Stoke's verbs leave out

    @property
    @abstractmethod
    def status(self) -> StokeStatus:
        """What runs, by Stoke's names; printed, it is the block that a verbose start shows."""

    @property
    def batch_size(self) -> int:
        """Samples per device and micro-batch."""
        return self.status.batch_size

    @property
    def effective_batch_size(self) -> int:
        """Samples per optimizer step, over all processes and micro-batches."""
        return self.status.effective_batch_size

    @property
    def grad_clip(self) -> Clip | None:
        return self.status.grad_clip

    @property
    def grad_accum(self) -> int:
        """Micro-batches per optimizer step."""
        return self.status.grad_accum

    @property
    def gpu(self) -> bool:
        return self.status.gpu

    @property
    def cuda(self) -> bool:
        return self.status.cuda

    @property
    def nccl(self) -> bool:
        return self.status.nccl

    @property
    def fp16(self) -> str | None:
        """The `fp16` option, or the name of a precision that Stoke never had; None in full precision."""
        return self.status.fp16

    @property
    def distributed(self) -> str | None:
        """The `distributed` option, or the name of a strategy that Stoke never had; None in one process."""
        return self.status.distributed

    @property
    def is_apex(self) -> bool:
        return self.status.is_fp16_apex

    @property
    def is_amp(self) -> bool:
        return self.status.is_fp16_amp

    @property
    def is_ddp(self) -> bool:
        return self.status.is_distributed_ddp

    @property
    def is_horovod(self) -> bool:
        return self.status.is_distributed_horovod

    @property
    def is_deepspeed(self) -> bool:
        return self.status.is_distributed_deepspeed

    @property
    def oss(self) -> bool:
        return self.status.oss

    @property
    def sharded(self) -> bool:
        return self.status.sharded

    @property
    def fully_sharded(self) -> bool:
        return self.status.fully_sharded

    @property
    def amp_config(self) -> configs.AMPConfig | None:
        return self._active(lambda: configs.AMPConfig, self.is_amp)

    @property
    def apex_config(self) -> configs.ApexConfig | None:
        return self._active(lambda: configs.ApexConfig, self.is_apex)

    @property
    def ddp_config(self) -> configs.DDPConfig | None:
        return self._active(lambda: configs.DDPConfig, self.is_ddp)

    @property
    def deepspeed_config(self) -> configs.DeepspeedConfig | None:
        return self._active(lambda: configs.DeepspeedConfig, self.is_deepspeed)

    @property
    def oss_config(self) -> configs.FairscaleOSSConfig | None:
        return self._active(lambda: configs.FairscaleOSSConfig, self.oss)

    @property
    def sddp_config(self) -> configs.FairscaleSDDPConfig | None:
        return self._active(lambda: configs.FairscaleSDDPConfig, self.sharded)

    @property
    def fsdp_config(self) -> configs.FairscaleFSDPConfig | None:
        return self._active(lambda: configs.FairscaleFSDPConfig, self.fully_sharded)

    @property
    def horovod_config(self) -> configs.HorovodConfig | None:
        return self._active(lambda: configs.HorovodConfig, self.is_horovod)

    def _active(self, kind: Callable[[], type[S]], on: bool) -> S | None:
        """The settings that are in force. An engine's class is imported when it is one that runs."""
        return self.session.spec.setting(kind()) if on else None
