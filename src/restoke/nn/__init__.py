"""Layers whose weights are sharded over a group of ranks, with the signatures of torch.nn."""

from __future__ import annotations

from restoke.nn import functional, init
from restoke.nn.accuracy import parallel_accuracy, parallel_topk
from restoke.nn.described import describe, plain, shard_of
from restoke.nn.embedding import ParallelEmbedding
from restoke.nn.linear import ParallelLinear
from restoke.nn.losses import ParallelCrossEntropyLoss
from restoke.nn.margin_linear import ParallelMarginLinear
from restoke.nn.margins import ArcFace, CombinedMargin, CosFace
from restoke.nn.registry import register_shard, shards_of
from restoke.nn.tagging import RegisterParallelDim
from restoke.nn.tags import (
    get_parallel_dim,
    register_parallel_attribute,
    register_parallel_dim,
    set_attribute,
    slice,  # noqa: A004 (TorchShard's name)
)

__all__ = [
    "ArcFace",
    "CombinedMargin",
    "CosFace",
    "ParallelCrossEntropyLoss",
    "ParallelEmbedding",
    "ParallelLinear",
    "ParallelMarginLinear",
    "RegisterParallelDim",
    "describe",
    "functional",
    "get_parallel_dim",
    "init",
    "parallel_accuracy",
    "parallel_topk",
    "plain",
    "register_parallel_attribute",
    "register_parallel_dim",
    "register_shard",
    "set_attribute",
    "shard_of",
    "shards_of",
    "slice",
]
