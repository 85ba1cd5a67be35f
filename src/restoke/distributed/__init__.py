"""Groups of ranks that share layers, and collectives over them that gradients pass through."""

from __future__ import annotations

from restoke.distributed.batches import gather_rows, own_rows
from restoke.distributed.collectives import copy, gather, reduce, scatter
from restoke.distributed.groups import (
    Group,
    default_group,
    destroy_process_group,
    get_group,
    get_rank,
    get_world_size,
    group_of,
    init_process_group,
    is_initialized,
)
from restoke.distributed.shards import Shard

__all__ = [
    "Group",
    "Shard",
    "copy",
    "default_group",
    "destroy_process_group",
    "gather",
    "gather_rows",
    "get_group",
    "get_rank",
    "get_world_size",
    "group_of",
    "init_process_group",
    "is_initialized",
    "own_rows",
    "reduce",
    "scatter",
]
