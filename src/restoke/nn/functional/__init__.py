"""Functions on parts of weights, with the signatures of torch.nn.functional."""

from __future__ import annotations

from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from restoke.nn.functional.embedding import parallel_embedding
from restoke.nn.functional.linear import parallel_linear
from restoke.nn.functional.margin_linear import parallel_margin_linear

__all__ = ["parallel_cross_entropy", "parallel_embedding", "parallel_linear", "parallel_margin_linear"]
