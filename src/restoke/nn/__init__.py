"""Layers whose weights are sharded over a group of ranks, with the signatures of torch.nn."""

from __future__ import annotations

from restoke.nn.described import describe, plain, shard_of
from restoke.nn.registry import register_shard, shards_of

__all__ = ["describe", "plain", "register_shard", "shard_of", "shards_of"]
