"""`torchshard.nn.init`: shards that begin as the whole would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from restoke.facades.torchshard.known import shard_of_memory
from restoke.nn.init import sharded_
from restoke.nn.registry import MARK

__all__ = ["shard_init_helper_"]


def shard_init_helper_(init_method: Callable[..., Any], tensor: Tensor, **kwargs: Any) -> None:
    """Fill a shard, or its `.data`, with its part of what the method makes of the whole; any other tensor with all of it.

    The result depends on rank 0's seed, and neither on other ranks' nor on how many they are. Nobody makes the whole, where
    the method fills elements one by one. Every rank of the group calls it.
    """
    shard = vars(tensor).get(MARK) or shard_of_memory(tensor)
    if shard is None:
        init_method(tensor, **kwargs)
    else:
        sharded_(init_method, tensor, shard, **kwargs)
