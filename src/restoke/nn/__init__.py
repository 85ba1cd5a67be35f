"""Layers whose weights are sharded over a group of ranks, with the signatures of torch.nn."""

from __future__ import annotations

from restoke.nn import functional, init
from restoke.nn.accuracy import parallel_accuracy, parallel_topk
from restoke.nn.convert import convert_parallel_embedding, convert_parallel_linear
from restoke.nn.described import describe, plain, shard_of
from restoke.nn.dropout import ParallelDropout
from restoke.nn.embedding import ParallelEmbedding
from restoke.nn.ignored import register_ddp_parameters_to_ignore
from restoke.nn.linear import ParallelLinear
from restoke.nn.linear_cross_entropy import ParallelLinearCrossEntropy
from restoke.nn.losses import ParallelCrossEntropyLoss
from restoke.nn.margin_linear import ParallelMarginLinear
from restoke.nn.margins import ArcFace, CombinedMargin, CosFace
from restoke.nn.partial_fc import PartialFC
from restoke.nn.partial_fc_files import load_partial_fc
from restoke.nn.registry import register_shard, shards_of
from restoke.nn.state_dict import collect_state_dict, relocate_state_dict
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
    "ParallelDropout",
    "ParallelEmbedding",
    "ParallelLinear",
    "ParallelLinearCrossEntropy",
    "ParallelMarginLinear",
    "PartialFC",
    "RegisterParallelDim",
    "collect_state_dict",
    "convert_parallel_embedding",
    "convert_parallel_linear",
    "describe",
    "functional",
    "get_parallel_dim",
    "init",
    "load_partial_fc",
    "parallel_accuracy",
    "parallel_topk",
    "plain",
    "register_ddp_parameters_to_ignore",
    "register_parallel_attribute",
    "register_parallel_dim",
    "register_shard",
    "relocate_state_dict",
    "set_attribute",
    "shard_of",
    "shards_of",
    "slice",
]
