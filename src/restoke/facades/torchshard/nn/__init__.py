"""`torchshard.nn`: layers and loss that a group of ranks shares."""

from __future__ import annotations

from restoke.facades.torchshard.nn import functional, init
from restoke.nn import ParallelCrossEntropyLoss, ParallelEmbedding, ParallelLinear, RegisterParallelDim

__all__ = [
    "ParallelCrossEntropyLoss",
    "ParallelEmbedding",
    "ParallelLinear",
    "RegisterParallelDim",
    "functional",
    "init",
]
