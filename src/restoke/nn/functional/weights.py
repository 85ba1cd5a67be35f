"""Of which whole a weight that was handed to a function is the part."""

from __future__ import annotations

from torch import Tensor

from restoke.distributed.groups import Group, get_group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.tags import checked_dim, fitting, shard_dim, told, whole_size


def shard_of_weight(weight: Tensor, dim: int | None, order_type: int, shard: Shard | None, group: Group | None) -> Shard | None:
    """What the caller, or whoever made the weight, said of it; else what the ranks' lengths tell. None where it is whole.

    Raises:
        SpecError: that contradicts `dim` or the weight's shape.
    """
    cut_dim = shard_dim(weight.ndim, checked_dim(dim), order_type)
    shard = shard or told(weight)
    if shard is None:
        group = get_group(group)
        if cut_dim is None or group.size == 1:
            return None
        return Shard(group, cut_dim, whole_size(weight.shape[cut_dim], weight.device, group))
    if cut_dim is None or shard.dim % weight.ndim != cut_dim:
        why = f"the weight is cut along its dimension {shard.dim}"
        raise SpecError.of("dim", dim, why, "the dim that it was made for")
    return None if shard.group.size == 1 else fitting(weight, shard)
