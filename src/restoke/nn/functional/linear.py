"""A linear map by a weight of which each rank holds some outputs (columns) or some inputs (rows)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from restoke.distributed.collectives import copy, reduce, scatter
from restoke.distributed.groups import Group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.described import describe, plain, shard_of
from restoke.nn.functional.weights import shard_of_weight


def parallel_linear(
    input: Tensor,  # noqa: A002 (torch's name)
    weight: Tensor,
    bias: Tensor | None = None,
    dim: int | None = None,
    *,
    shard: Shard | None = None,
    group: Group | None = None,
) -> Tensor:
    """`input @ weight.T + bias` over the group.

    Args:
        input: shape (..., in_features), alike on every rank; for `dim=0` also a described part, (..., inputs of this rank).
        weight: this rank's part: shape (outputs of this rank, in_features) for `dim=1` and -1, (out_features, inputs of this
            rank) for `dim=0`, the whole for None.
        bias: shape (outputs of this rank) for `dim=1` and -1, else (out_features), alike on every rank.
        shard: of which whole the weight is the part; None: as its layer or `register_parallel_attribute` said, else the
            ranks tell their lengths, and wait.

    Returns:
        `dim=1` and -1: this rank's part of the last dimension, described. Else the whole, alike on every rank.

    Raises:
        SpecError: the shapes do not fit, or the input is a part where it must be whole, or its description was lost.
    """
    shard = shard_of_weight(weight, dim, 0, shard, group)
    if shard is None:
        return F.linear(input, weight, bias)
    if dim == 0:
        return _by_inputs(input, weight, bias, shard)
    return _by_outputs(input, weight, bias, shard)


def _by_outputs(x: Tensor, weight: Tensor, bias: Tensor | None, shard: Shard) -> Tensor:
    known = shard_of(x)
    if known is not None:
        why = f"it is one rank's part of {known.size} along dimension {known.dim}, and each output asks for all inputs"
        raise SpecError.of(
            "input", tuple(x.shape), why, "dim=0, whose input may be a part, or restoke.distributed.gather before"
        )
    _check_width(x, weight.shape[1], weight.shape[1])
    return describe(F.linear(copy(x, shard.group), weight, bias), shard.along(-1))


def _by_inputs(x: Tensor, weight: Tensor, bias: Tensor | None, shard: Shard) -> Tensor:
    known = shard_of(x)
    if known is None:
        _check_width(x, shard.size, shard.size)
        mine = scatter(x, -1, shard.group)
    else:
        _check_part(x, known, shard)
        mine = plain(x)
    out = reduce(F.linear(mine, weight), shard.group)
    return out if bias is None else out + bias.to(out.dtype)


def _check_width(x: Tensor, width: int, whole: int) -> None:
    if x.ndim == 0 or x.shape[-1] != width:
        why = f"the weight has {whole} inputs, and nothing says that this tensor is a part"
        instead = f"shape (..., {whole}), or restoke.nn.describe(tensor, shard) of a part for dim=0"
        raise SpecError.of("input", tuple(x.shape), why, instead)


def _check_part(x: Tensor, known: Shard, shard: Shard) -> None:
    if known.dim % x.ndim != x.ndim - 1 or known.size != shard.size or known.group.ranks != shard.group.ranks:
        why = f"it is a part of {known.size} along dimension {known.dim} over ranks {known.group.ranks}"
        instead = f"a part of {shard.size} along the last dimension over ranks {shard.group.ranks}, or a whole"
        raise SpecError.of("input", tuple(x.shape), why, instead)
