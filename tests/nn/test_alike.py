"""Ranks that share a layer and hand it inputs of their own are told, once, all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from restoke.distributed import group_of
from restoke.nn import ParallelEmbedding, ParallelLinear
from tests.nn.joined import refused, run


def tried(kind: str) -> str:
    group = group_of()
    layer: nn.Module = ParallelEmbedding(10, 4, dim=0) if kind == "ids" else ParallelLinear(6, 5, dim=1)
    x = torch.arange(6).reshape(1, 6) if kind == "ids" else torch.arange(12.0).reshape(2, 6)
    if kind == "values":
        x = x + group.rank
    elif kind == "order":
        x = x.flip(0) if group.rank else x
    elif kind == "shape":
        x = x[: 1 + group.rank]
    elif kind == "ids":
        x = (x + group.rank) % 10
    elif kind == "overflow":
        x = x * float("inf")
    elif kind == "later":
        layer(x)
        x = x + group.rank  # the first forward was right, and from then on nothing is asked
    elif kind == "evaluation":
        layer(x)
        layer.eval()
        x = x + group.rank
    return refused(layer, x)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("same", ""),
        ("overflow", ""),
        ("later", ""),
        ("values", "different inputs"),
        ("order", "different inputs"),
        ("shape", "different shapes"),
        ("ids", "different inputs"),
        ("evaluation", "different inputs"),
    ],
)
def test_the_first_forward_tells_every_rank(kind: str, said: str) -> None:
    for found in run(2, tried, kind):
        assert bool(found) == bool(said)
        assert said in found
