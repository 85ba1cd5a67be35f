"""Meshes of ranks: replicas of shards, and beside them the ranks that share each layer. Made once for each shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from restoke.errors import SpecError
from restoke.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("replicate", "shard", "tensor")
_MADE: dict[tuple[str, tuple[int, ...]], Any] = {}  # groups are never freed, so sessions of one shape share them


def mesh(world: World, replicas: int = 1) -> DeviceMesh:
    """All ranks as replicas x shards x tensor, the last axis the fastest: neighbours share layers, then a shard group.

    Every rank calls this. Raises SpecError where the ranks cannot be divided so.
    """
    from torch.distributed.device_mesh import init_device_mesh

    if world.data_size % replicas:
        why = f"{world.data_size} data-parallel ranks cannot be divided into {replicas} replicas"
        raise SpecError.of("FSDPConfig.replicas", replicas, why, "a divisor of that number")
    shape = (replicas, world.data_size // replicas, world.tensor)
    key = (world.device.type, shape)
    if key not in _MADE:
        _MADE[key] = init_device_mesh(world.device.type, shape, mesh_dim_names=AXES)
    return _MADE[key]  # type: ignore[no-any-return]
