"""Whether targets and class weights fit the logits, and what they make the rows aim at."""

from __future__ import annotations

import torch
from torch import Tensor

from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.described import Part, describe, plain, shard_of
from restoke.nn.functional.class_targets import Aims, Indices, Probabilities

INDEX_TYPES = (torch.int64, torch.int32)


def aims_of(
    scores: Tensor, target: Tensor, shard: Shard, weight: Tensor | None, ignore_index: int, smoothing: float, dtype: torch.dtype
) -> Aims:
    """What the rows of a part of the logits aim at.

    Raises:
        SpecError: targets or weights are of another shape or dtype, or on another device.
    """
    own_weight = None if weight is None else _own(weight, scores, shard).to(dtype)
    if not target.dtype.is_floating_point:
        check_index_targets(scores, target)
        return Indices.of(target.reshape(-1), shard, own_weight, ignore_index, smoothing, dtype)
    if ignore_index >= 0:
        why = "targets are probabilities: there is no index to ignore"
        raise SpecError.of("ignore_index", ignore_index, why, "its default, or numbers of classes as targets")
    if target.requires_grad:
        raise SpecError.of("target", "a tensor that requires grad", "no gradient passes to targets", "target.detach()")
    own = _own_probabilities(scores, target, shard)
    own = own.unsqueeze(0) if own.ndim == 1 else own
    return Probabilities.of(own.unsqueeze(2) if own.ndim == 2 else own.flatten(2), shard, own_weight, smoothing)


def check_index_targets(scores: Tensor, target: Tensor) -> None:
    """Raises SpecError where these are not one class for each row, on the logits' device."""
    shape = (*scores.shape[:1], *scores.shape[2:]) if scores.ndim > 1 else ()
    if target.dtype not in INDEX_TYPES:
        instead = "torch.int64 or torch.int32 for numbers of classes, floating point for probabilities"
        raise SpecError.of("target", target.dtype, "it is neither numbers of classes nor probabilities", instead)
    _check_device("target", target, scores)
    if target.shape != shape:
        why = f"logits of shape {tuple(scores.shape)} have one target for each row"
        instead = f"shape {tuple(shape)}; of all ranks' rows: restoke.distributed.gather_rows(target, group)"
        raise SpecError.of("target", tuple(target.shape), why, instead)


def check_weight(weight: Tensor, scores: Tensor, size: int) -> None:
    """Raises SpecError where this is not one weight for each class."""
    _check_device("weight", weight, scores)
    if weight.shape != (size,) or not weight.dtype.is_floating_point:
        why = f"there are {size} classes"
        instead = f"floating point of shape ({size},), or a described part of that"
        raise SpecError.of("weight", f"{weight.dtype} of shape {tuple(weight.shape)}", why, instead)


def _check_device(name: str, tensor: Tensor, scores: Tensor) -> None:
    if tensor.device != scores.device:
        raise SpecError.of(name, tensor.device, f"the logits are on {scores.device}", f"{name}.to({str(scores.device)!r})")


def _own(weight: Tensor, scores: Tensor, shard: Shard) -> Tensor:
    known = shard_of(weight)
    if known is None:
        check_weight(weight, scores, shard.size)
        return shard.along(0).of(weight).detach()
    _check_same("weight", known, shard)
    check_weight(plain(weight), scores, shard.length)
    return plain(weight).detach()


def _own_probabilities(scores: Tensor, target: Tensor, shard: Shard) -> Tensor:
    _check_device("target", target, scores)
    if isinstance(target, Part):
        known = shard_of(target)
        if known is not None:
            _check_same("target", known, shard)
        describe(plain(target), shard)
        if target.shape != scores.shape:
            why = f"the logits are a part of shape {tuple(scores.shape)}"
            raise SpecError.of("target", tuple(target.shape), why, "a part of the same shape")
        return plain(target)
    whole = shard.whole_shape(scores)
    if tuple(target.shape) != whole:
        why = f"probabilities are given for each of {shard.size} classes, and nothing says that these are a part"
        raise SpecError.of("target", tuple(target.shape), why, f"shape {whole}, or restoke.nn.describe(target, shard)")
    return shard.of(target)


def _check_same(name: str, known: Shard, shard: Shard) -> None:
    if known.size != shard.size or known.group.ranks != shard.group.ranks:
        why = f"it is a part of {known.size} over ranks {known.group.ranks}"
        raise SpecError.of(name, f"a part of {known.size}", why, f"a part of {shard.size} over ranks {shard.group.ranks}")
