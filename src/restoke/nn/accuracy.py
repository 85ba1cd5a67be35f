"""Which classes score highest, and whether the right one is among them, where each rank holds the scores of some classes.

Logits are never gathered: each rank finds its own k highest, and only those travel, with the numbers of their classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from restoke.distributed.collectives import all_gather, all_reduce
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.described import describe, plain, shard_of


@torch.no_grad()
def parallel_topk(input: Tensor, k: int, *, shard: Shard | None = None) -> tuple[Tensor, Tensor]:  # noqa: A002 (torch's name)
    """The k highest scores of each row over all classes, from high to low, and the numbers of their classes.

    Of equal scores the class with the lower number comes first, however many ranks there are. No gradient passes.

    Args:
        input: shape (..., classes of this rank), a described part; a tensor without a description is whole.
        shard: what the input is, where its description was lost.

    Returns:
        Values and indices, shape (..., k), alike on every rank.

    Raises:
        SpecError: there are fewer than k classes, or the input is a part along another dimension than the last.
    """
    part, shard = _part_of(input, shard)
    size = part.shape[-1] if shard is None else shard.size
    if type(k) is not int or not 1 <= k <= size:
        raise SpecError.of("k", k, f"there are {size} classes", f"1 to {size}")
    values, indices = _highest(part, k)
    if shard is None:
        return values, indices
    lengths = [min(k, length) for length in shard.lengths]
    values = all_gather(values, -1, lengths, shard.group)
    indices = all_gather(indices + shard.start, -1, lengths, shard.group)
    best, order = _highest(values, k)  # ranks are in the order of their classes, so that ties stay in order
    return best, indices.gather(-1, order)


@torch.no_grad()
def parallel_accuracy(
    input: Tensor,  # noqa: A002 (torch's name)
    target: Tensor,
    topk: Sequence[int] = (1,),
    rows: Sequence[int] | None = None,
    *,
    ignore_index: int = -100,
) -> list[Tensor]:
    """For each k the share of rows whose target is among the k highest, between 0 and 1; alike on every rank.

    A target counts as among the k highest if fewer than k classes have a higher score, or an equal one and a lower number.
    So nothing is sorted: two numbers a row travel, one after the other, whatever k.

    Args:
        input: shape (rows, classes of this rank), a described part, or whole logits.
        target: shape (rows), numbers of classes of the whole.
        rows: each rank's number of rows: this rank's own are counted alone, with their own share; None: all rows.
        ignore_index: rows with this target do not count. NaN where none is left.

    Raises:
        SpecError: shapes do not fit, or a target is no class.
    """
    part, shard = _part_of(input, None)
    size = part.shape[-1] if shard is None else shard.size
    _check_targets(part, target, size, ignore_index)
    before = _higher(part, target, shard)
    counted = target != ignore_index
    if rows is not None and shard is not None:
        own = slice(sum(rows[: shard.group.rank]), sum(rows[: shard.group.rank + 1]))
        before, counted = before[own], counted[own]
    return [((before < k) & counted).sum() / counted.sum() for k in topk]


def _part_of(scores: Tensor, shard: Shard | None) -> tuple[Tensor, Shard | None]:
    """The rank's own scores, and of what they are a part; None where they are whole."""
    part = plain(scores)
    if shard is not None:
        shard = shard.along(-1)
        describe(part, shard)
    else:
        shard = shard_of(scores)
    if part.ndim == 0 or (shard is not None and shard.dim % part.ndim != part.ndim - 1):
        raise SpecError.of("input", tuple(part.shape), "classes are its last dimension", "shape (..., classes)")
    return part, None if shard is None or shard.group.size == 1 else shard.along(-1)


def _highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As torch.topk, of fewer if there are fewer; of equal scores the first come, and in order."""
    k = min(k, scores.shape[-1])
    if not scores.numel() or not k:
        return scores[..., :k], scores.new_empty((*scores.shape[:-1], k), dtype=torch.int64)
    values, indices = scores.topk(k)
    tied = (scores == values[..., -1:]).sum(-1) > (values == values[..., -1:]).sum(-1)
    if tied.any():  # torch.topk then takes any of those that share the last place
        indices[tied] = scores[tied].sort(dim=-1, descending=True, stable=True).indices[..., :k]
    indices = indices.sort(dim=-1).values
    values, order = scores.gather(-1, indices).sort(dim=-1, descending=True, stable=True)
    return values, indices.gather(-1, order)


def _check_targets(part: Tensor, target: Tensor, size: int, ignore_index: int) -> None:
    if part.ndim != 2 or target.shape != part.shape[:1] or target.dtype != torch.int64 or target.device != part.device:
        got = f"{target.dtype} of shape {tuple(target.shape)} on {target.device} for logits of shape {tuple(part.shape)}"
        raise SpecError.of("target", got, f"each row on {part.device} has one target", "int64 of shape (rows)")
    outside = target[((target < 0) | (target >= size)) & (target != ignore_index)]
    if outside.numel():
        raise SpecError.of("target", int(outside[0]), f"there are {size} classes", f"0 to {size - 1}, or {ignore_index}")


def _higher(part: Tensor, target: Tensor, shard: Shard | None) -> Tensor:
    """How many classes come before each row's target. Where scores are NaN they do: no model is right that has them."""
    start = 0 if shard is None else shard.start
    own, width = target - start, part.shape[1]
    here = (own >= 0) & (own < width)
    score = part.new_zeros(len(target), dtype=torch.promote_types(part.dtype, torch.float32))
    if width:
        score = torch.where(here, part.gather(1, own.clamp(0, width - 1).unsqueeze(1)).squeeze(1).to(score.dtype), score)
    if shard is not None:
        all_reduce(score, shard.group)
    score = score.to(part.dtype).unsqueeze(1)
    first = torch.arange(width, device=part.device) < own.unsqueeze(1)
    before = (part <= score).logical_not_().sum(1) + first.logical_and_(part == score).sum(1)
    return before if shard is None else all_reduce(before, shard.group)
