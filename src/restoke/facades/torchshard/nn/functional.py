"""`torchshard.nn.functional`: its argument lists over restoke's functions."""

from __future__ import annotations

from typing import final

from torch import Tensor
from torch.nn._reduction import legacy_get_string

from restoke.distributed.groups import default_group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn import functional as F
from restoke.nn.described import plain, shard_of

__all__ = ["ParallelCrossEntropy", "parallel_cross_entropy", "parallel_embedding", "parallel_linear"]


def parallel_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, dim: int | None = None) -> Tensor:  # noqa: A002
    """See `restoke.nn.functional.parallel_linear`. A weight or bias that `scatter` made may be described."""
    return F.parallel_linear(input, plain(weight), None if bias is None else plain(bias), dim)


def parallel_embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    num_embeddings: int | None = None,
    dim: int | None = None,
) -> Tensor:
    """See `restoke.nn.functional.parallel_embedding`; for `dim=0`, `num_embeddings` counts the rows of the whole table."""
    rows = num_embeddings if dim == 0 else None
    shard = None if rows is None else Shard(default_group(), 0, rows)
    options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, dim)
    return F.parallel_embedding(input, plain(weight), *options, shard=shard)


def parallel_cross_entropy(
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """See `restoke.nn.functional.parallel_cross_entropy`: of a part that is described, or of whole logits.

    Raises:
        SpecError: the input was made of a part by something that does not tell what it is.
    """
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce)
    return F.parallel_cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction)


@final
class ParallelCrossEntropy:
    """What `parallel_cross_entropy` calls for parts, under the name of TorchShard's autograd function."""

    @staticmethod
    def apply(
        input: Tensor,  # noqa: A002
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Raises SpecError where the input is not a part, and its group has other ranks."""
        if shard_of(input) is None and default_group().size > 1:
            why = "nothing says of which classes it is the part"
            raise SpecError.of("input", tuple(input.shape), why, "register_parallel_dim(input, -1) before")
        return parallel_cross_entropy(input, target, weight, size_average, ignore_index, reduce, reduction)
