"""Layers whose weights are sharded over a group of ranks, with the signatures of torch.nn."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restoke.nn import functional as functional
    from restoke.nn import init as init
    from restoke.nn.accuracy import parallel_accuracy as parallel_accuracy
    from restoke.nn.accuracy import parallel_topk as parallel_topk
    from restoke.nn.convert import convert_parallel_embedding as convert_parallel_embedding
    from restoke.nn.convert import convert_parallel_linear as convert_parallel_linear
    from restoke.nn.described import describe as describe
    from restoke.nn.described import plain as plain
    from restoke.nn.described import shard_of as shard_of
    from restoke.nn.dropout import ParallelDropout as ParallelDropout
    from restoke.nn.embedding import ParallelEmbedding as ParallelEmbedding
    from restoke.nn.ignored import register_ddp_parameters_to_ignore as register_ddp_parameters_to_ignore
    from restoke.nn.linear import ParallelLinear as ParallelLinear
    from restoke.nn.linear_cross_entropy import ParallelLinearCrossEntropy as ParallelLinearCrossEntropy
    from restoke.nn.losses import ParallelCrossEntropyLoss as ParallelCrossEntropyLoss
    from restoke.nn.margin_linear import ParallelMarginLinear as ParallelMarginLinear
    from restoke.nn.margins import ArcFace as ArcFace
    from restoke.nn.margins import CombinedMargin as CombinedMargin
    from restoke.nn.margins import CosFace as CosFace
    from restoke.nn.partial_fc import PartialFC as PartialFC
    from restoke.nn.partial_fc_files import load_partial_fc as load_partial_fc
    from restoke.nn.registry import register_shard as register_shard
    from restoke.nn.registry import shards_of as shards_of
    from restoke.nn.state_dict import collect_state_dict as collect_state_dict
    from restoke.nn.state_dict import relocate_state_dict as relocate_state_dict
    from restoke.nn.tagging import RegisterParallelDim as RegisterParallelDim
    from restoke.nn.tags import get_parallel_dim as get_parallel_dim
    from restoke.nn.tags import register_parallel_attribute as register_parallel_attribute
    from restoke.nn.tags import register_parallel_dim as register_parallel_dim
    from restoke.nn.tags import set_attribute as set_attribute
    from restoke.nn.tags import slice as slice  # noqa: A004 (TorchShard's name)

# where each name is, loaded on first use: a session asks for the registry alone
_PLACES = {
    "ArcFace": "restoke.nn.margins",
    "CombinedMargin": "restoke.nn.margins",
    "CosFace": "restoke.nn.margins",
    "ParallelCrossEntropyLoss": "restoke.nn.losses",
    "ParallelDropout": "restoke.nn.dropout",
    "ParallelEmbedding": "restoke.nn.embedding",
    "ParallelLinear": "restoke.nn.linear",
    "ParallelLinearCrossEntropy": "restoke.nn.linear_cross_entropy",
    "ParallelMarginLinear": "restoke.nn.margin_linear",
    "PartialFC": "restoke.nn.partial_fc",
    "RegisterParallelDim": "restoke.nn.tagging",
    "collect_state_dict": "restoke.nn.state_dict",
    "convert_parallel_embedding": "restoke.nn.convert",
    "convert_parallel_linear": "restoke.nn.convert",
    "describe": "restoke.nn.described",
    "get_parallel_dim": "restoke.nn.tags",
    "load_partial_fc": "restoke.nn.partial_fc_files",
    "parallel_accuracy": "restoke.nn.accuracy",
    "parallel_topk": "restoke.nn.accuracy",
    "plain": "restoke.nn.described",
    "register_ddp_parameters_to_ignore": "restoke.nn.ignored",
    "register_parallel_attribute": "restoke.nn.tags",
    "register_parallel_dim": "restoke.nn.tags",
    "register_shard": "restoke.nn.registry",
    "relocate_state_dict": "restoke.nn.state_dict",
    "set_attribute": "restoke.nn.tags",
    "shard_of": "restoke.nn.described",
    "shards_of": "restoke.nn.registry",
    "slice": "restoke.nn.tags",
}
_MODULES = ("functional", "init")

__all__ = [*_MODULES, *_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"restoke.nn.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'restoke.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
