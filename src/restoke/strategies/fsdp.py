"""Parameters, gradients and optimizer state are sharded; each block is gathered when it is needed (ZeRO stage 3)."""

from __future__ import annotations

from restoke.parts import Parts, Request
from restoke.sharding import shard


def prepare(request: Request) -> Parts:
    """torch's FSDP2 with the settings of FSDPConfig."""
    return shard(request, whole_after_forward=False)
