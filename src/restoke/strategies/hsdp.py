"""Groups of ranks hold a whole copy each, sharded within the group; gradients are summed within it and then between groups."""

from __future__ import annotations

from restoke.configs.fsdp_rules import replicas
from restoke.parts import Parts, Request
from restoke.sharding import shard


def prepare(request: Request) -> Parts:
    """torch's FSDP2 on a mesh of replicas x shards, with the settings of FSDPConfig."""
    copies = replicas(request.spec, request.world.size, request.world.local_size)
    return shard(request, whole_after_forward=False, replicas=copies)
