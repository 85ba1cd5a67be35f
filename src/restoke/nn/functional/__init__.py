"""Functions on parts of weights, with the signatures of torch.nn.functional."""

from __future__ import annotations

from restoke.nn.functional.embedding import parallel_embedding
from restoke.nn.functional.linear import parallel_linear

__all__ = ["parallel_embedding", "parallel_linear"]
