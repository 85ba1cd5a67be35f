"""Cross-entropy of logits of which each rank of a group holds some classes, equal to that of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from attrs import field, frozen
from torch import Tensor
from torch.nn._reduction import legacy_get_string

from restoke.distributed.batches import own_rows
from restoke.distributed.groups import Group
from restoke.distributed.shards import Shard
from restoke.errors import DataError, RestokeError, SpecError
from restoke.nn.described import describe, plain, shard_of
from restoke.nn.functional.class_targets import Aims
from restoke.nn.functional.cross_entropy_parts import refuse_together, row_losses
from restoke.nn.functional.cross_entropy_targets import aims_of, check_index_targets, check_weight
from restoke.nn.provenance import came_from

REDUCTIONS = ("none", "mean", "sum")


@final
@frozen(eq=False)
class How:
    """The options of a cross-entropy, as torch names them; `rows` are each rank's numbers of rows."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = field(default="mean")
    label_smoothing: float = field(default=0.0)
    rows: Sequence[int] | None = None

    @reduction.validator
    def _known(self, _: object, reduction: str) -> None:
        if reduction not in REDUCTIONS:
            raise SpecError.of("reduction", reduction, "torch has three", ", ".join(REDUCTIONS))

    @label_smoothing.validator
    def _share(self, _: object, smoothing: float) -> None:
        if not 0 <= smoothing <= 1:
            raise SpecError.of("label_smoothing", smoothing, "it is a share of the target", "0.0 to 1.0")

    def check_rows(self, rows: int, group: Group | None) -> None:
        """Raises SpecError where `rows` does not say how these are shared out among the ranks."""
        if self.rows is None:
            return
        size = 1 if group is None else group.size
        if len(self.rows) != size or sum(self.rows) != rows:
            why = f"the input has {rows} rows, and {'is whole' if size == 1 else f'{size} ranks share its classes'}"
            raise SpecError.of("rows", list(self.rows), why, "each rank's number of rows, which add up to all of them")

    def reduced(self, loss: Tensor, divisors: Tensor, shape: Sequence[int], group: Group) -> Tensor:
        """Of each row's loss, those of this rank where `rows` is given, what torch would give. Shape: the target's rows."""
        shape = list(shape)
        if self.rows is not None:
            positions = len(loss) // max(1, sum(self.rows))
            lengths = [each * positions for each in self.rows]
            loss = own_rows(loss, group, lengths)
            divisors = divisors.narrow(0, sum(lengths[: group.rank]), lengths[group.rank])
            shape[0] = self.rows[group.rank]
        if self.reduction == "none":
            return loss.reshape(shape)
        return loss.sum() if self.reduction == "sum" else loss.sum() / divisors.sum()


def parallel_cross_entropy(
    input: Tensor,  # noqa: A002 (torch's name)
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    shard: Shard | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` of the whole logits, from the part that each rank holds; alike on every rank.

    Logits are never gathered. Two small collectives forward, none backward (with `rows`, one). Arithmetic is in float32 at
    least, and so is the loss; the gradient has the input's dtype. A plain tensor is whole: it gets torch's own function.

    Args:
        input: shape (classes), (B, classes) or (B, classes, d1, ...), of this rank: a described part.
        target: alike on every rank: numbers of classes of the whole, int64 or int32, shape (), (B) or (B, d1, ...); or
            probabilities, shaped as the whole logits, or as the input: a described part.
        weight: of all classes, or of this rank's: a described part. Shape (classes).
        shard: what the input is, where its description was lost.
        rows: each rank's number of rows of B: the loss of this rank's own rows comes out, as each rank of data parallelism
            has its own; None: of all rows.

    Raises:
        SpecError: something does not fit, or the input's description was lost.
        DataError: on every rank, where a target is no class or targets are unlike. (On a GPU an assertion of the kernels.)
    """
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce)
    how = How(weight, ignore_index, reduction, label_smoothing, rows)
    known = _part_of(input, shard)
    if known is None:
        return _whole(input, target, how)
    part = plain(input)
    part = part.unsqueeze(0) if part.ndim == 1 else part.flatten(2) if part.ndim > 2 else part
    dtype = torch.promote_types(part.dtype, torch.float32)
    if target.dtype == torch.float64:
        dtype = torch.float64
    batch = input.shape[0] if input.ndim > 1 else 1
    aims = checked(input, target, known, how, dtype, len(part) * part.shape[2:].numel(), batch)
    loss, divisors = row_losses(part, aims, known.group, dtype)
    return how.reduced(loss, divisors, (*input.shape[:1], *input.shape[2:]) if input.ndim > 1 else (), known.group)


def checked(scores: Tensor, target: Tensor, shard: Shard, how: How, dtype: torch.dtype, rows: int, batch: int) -> Aims:
    """What the rows aim at. A refusal is told to the other ranks before it is raised.

    Args:
        rows: that have a target. batch: the length of the dimension that `how.rows` shares out.
    """
    try:
        how.check_rows(batch, shard.group)
        return aims_of(scores, target, shard, how.weight, how.ignore_index, how.label_smoothing, dtype)
    except RestokeError:
        refuse_together(rows, dtype, scores.device, shard.group)
        raise


def _part_of(scores: Tensor, shard: Shard | None) -> Shard | None:
    """Of what the logits are a part, along their dimension of classes; None where they are whole."""
    if scores.ndim == 0:
        raise SpecError.of("input", (), "it has no dimension of classes", "shape (B, classes)")
    classes = 0 if scores.ndim == 1 else 1
    if shard is not None:
        describe(plain(scores), shard.along(classes))
        return shard.along(classes)
    shard = shard_of(scores)
    if shard is None:
        _refuse_stripped(scores, classes)
        return None
    if shard.dim % scores.ndim != classes:
        why = f"it is a part along dimension {shard.dim}, and classes are dimension {classes}, as for torch"
        raise SpecError.of("input", tuple(scores.shape), why, "shape (B, classes), such as logits.flatten(0, -2)")
    return shard.along(classes)


def _refuse_stripped(scores: Tensor, classes: int) -> None:
    known = came_from(scores, scores.shape[classes])
    if known is not None:
        why = f"it was made from this rank's part of {known.size} classes by something that gives plain tensors"
        raise SpecError.of("input", tuple(scores.shape), why, "shard=, or restoke.nn.describe(input, shard)")


def _whole(scores: Tensor, target: Tensor, how: How) -> Tensor:
    """Torch's own, once it is clear that these are all classes."""
    size = scores.shape[0 if scores.ndim == 1 else 1]
    if size < 1:
        raise SpecError.of("input", tuple(scores.shape), "there is no class", "shape (B, classes), classes 1 or more")
    how.check_rows(scores.shape[0] if scores.ndim > 1 else 1, None)
    if how.weight is not None:
        check_weight(how.weight, scores, size)
    if not target.dtype.is_floating_point:
        check_index_targets(scores, target)
        target = target.to(torch.int64)
        _check_range(target, size, how.ignore_index)
    return F.cross_entropy(
        scores,
        target,
        how.weight,
        ignore_index=how.ignore_index,
        reduction=how.reduction,
        label_smoothing=how.label_smoothing,
    )


def _check_range(target: Tensor, size: int, ignore_index: int) -> None:
    """On a CPU, where looking costs no wait; elsewhere torch's kernel asserts it."""
    if target.device.type != "cpu" or type(target) is not Tensor:
        return
    outside = ((target < 0) | (target >= size)) & (target != ignore_index)
    if outside.any():
        why = f"nothing says that these logits are a part, so there are {size} classes"
        instead = f"0 to {size - 1}, or ignore_index; of a part, restoke.nn.describe(input, shard)"
        raise DataError.of("target", int(target[outside][0]), why, instead)
