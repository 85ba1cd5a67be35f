"""Functions on parts of weights, with the signatures of torch.nn.functional."""

from __future__ import annotations

from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from restoke.nn.functional.dropout import parallel_dropout
from restoke.nn.functional.embedding import parallel_embedding
from restoke.nn.functional.linear import parallel_linear
from restoke.nn.functional.linear_cross_entropy import parallel_linear_cross_entropy
from restoke.nn.functional.margin_linear import parallel_margin_linear

__all__ = [
    "parallel_cross_entropy",
    "parallel_dropout",
    "parallel_embedding",
    "parallel_linear",
    "parallel_linear_cross_entropy",
    "parallel_margin_linear",
]
