"""Scaled cosines between features and the class vectors of which each rank holds some, with a margin at each target.

cos = (x / |x|) W^T * (1 / |w|): dividing the product by the norms, no normalised copy of the weight is ever made, neither
here nor in the backward, where the gradient passes through the norms too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed.collectives import copy
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.described import describe, plain, shard_of
from restoke.nn.margins import Margin

SMALLEST = 1e-12  # of a norm, as torch.nn.functional.normalize has it
PIECE = 1 << 22  # elements of a weight that is widened, at a time


def parallel_margin_linear(
    input: Tensor,  # noqa: A002 (torch's name)
    weight: Tensor,
    target: Tensor | None = None,
    *,
    shard: Shard,
    margin: Margin | None = None,
    scale: float = 64.0,
    offset: Tensor | None = None,
) -> Tensor:
    """`scale * margin(cos)` at each row's target, `scale * cos` elsewhere. Arithmetic is in float32, or float64 if a tensor is.

    Args:
        input: features of all rows, alike on every rank: shape (rows, features).
        weight: this rank's part: shape (classes of this rank, features).
        target: shape (rows), int64, numbers of classes of the whole; a row whose target is none of them has no margin.
        shard: of the classes.
        margin: of target cosines, element by element; None: no margin.
        offset: added to the logits: shape (classes of this rank); it gets no gradient.

    Returns:
        Shape (rows, classes of this rank), a described part of the last dimension.

    Raises:
        SpecError: shapes or dtypes do not fit, or the input is a part.
    """
    check_rows(input, weight.shape[1], target)
    dtype = torch.promote_types(torch.promote_types(input.dtype, weight.dtype), torch.float32)
    with torch.autocast(weight.device.type, enabled=False):
        x = copy(F.normalize(plain(input).to(dtype), dim=-1, eps=SMALLEST), shard.group)
        mine = None if target is None or margin is None else target - shard.start
        out: Tensor = _Cosines.apply(x, weight, mine, margin, scale, offset)  # type: ignore[no-untyped-call]
    return out if shard.group.size == 1 else describe(out, shard.along(-1))


def check_rows(features: Tensor, width: int, target: Tensor | None) -> None:
    """Raises SpecError where these are not features of so many rows with their targets."""
    known = shard_of(features)
    if known is not None:
        why = f"it is one rank's part of {known.size} along dimension {known.dim}, and a cosine asks for all features"
        raise SpecError.of("input", tuple(features.shape), why, "restoke.distributed.gather before")
    if features.ndim != 2 or features.shape[1] != width:
        raise SpecError.of("input", tuple(features.shape), f"class vectors have {width} elements", f"shape (rows, {width})")
    if target is None:
        return
    if target.dtype != torch.int64 or target.device != features.device:
        why = f"targets are numbers of classes, where the features are: on {features.device}"
        raise SpecError.of("target", f"{target.dtype} on {target.device}", why, f"int64 on {features.device}")
    if target.shape != features.shape[:1]:
        why = f"the features have {features.shape[0]} rows"
        instead = "targets of all rows: restoke.distributed.gather_rows(target, group)"
        raise SpecError.of("target", tuple(target.shape), why, instead)


def _pieces(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """The weight in this dtype, all at once if it has it, else some rows at a time."""
    rows = max(1, PIECE // max(1, weight.shape[1])) if weight.dtype != dtype else max(1, weight.shape[0])
    for first in range(0, weight.shape[0], rows):
        piece = slice(first, first + rows)
        yield piece, weight[piece].to(dtype)


@final
class _Targets:
    """The cosines of rows with their targets, where these are here; the margin has been put in their places."""

    def __init__(self, cosines: Tensor, mine: Tensor, margin: Margin) -> None:
        self._here = (mine >= 0) & (mine < cosines.shape[1])
        self._column = mine.clamp(0, cosines.shape[1] - 1).unsqueeze(1)  # no index of rows: the device need not be waited for
        self.cosine = cosines.gather(1, self._column).squeeze(1)
        with torch.enable_grad():
            before = self.cosine.detach().requires_grad_()
            after = margin(before)
            (self.slope,) = torch.autograd.grad(after.sum(), before)
        self.put(cosines, after.detach())

    def of(self, values: Tensor) -> Tensor:
        return values.gather(1, self._column).squeeze(1)

    def put(self, values: Tensor, new: Tensor) -> None:
        """In place, in the rows whose target is here."""
        values.scatter_(1, self._column, torch.where(self._here, new, self.of(values)).unsqueeze(1))


class _Cosines(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, mine: Tensor | None, margin: Margin | None, scale: float, offset: Tensor | None
    ) -> Tensor:
        out, norms = x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(weight.shape[0])
        for piece, w in _pieces(weight, x.dtype):
            torch.linalg.vector_norm(w, dim=1, out=norms[piece])
            torch.mm(x, w.t(), out=out[:, piece])
        out *= 1 / norms.clamp_min(SMALLEST)
        ctx.targets = None if mine is None or margin is None or not out.numel() else _Targets(out, mine, margin)
        out *= scale
        if offset is not None:
            out += offset
        ctx.scale = scale
        ctx.save_for_backward(x, weight, norms, out, offset)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, norms, out, offset = ctx.saved_tensors
        with torch.autocast(weight.device.type, enabled=False):
            of_products, through_norms = _of_products(grad, norms, out, offset, ctx.scale, ctx.targets)
            grad_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
            grad_w = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
            for piece, w in _pieces(weight, x.dtype):
                some = of_products[:, piece]
                if grad_x is not None:
                    grad_x.addmm_(some, w)
                if grad_w is not None:
                    whole = grad_w.dtype == x.dtype
                    own = torch.mm(some.t(), x, out=grad_w[piece] if whole else None)
                    own.addcmul_(through_norms[piece].unsqueeze(1), w, value=-1)
                    if not whole:
                        grad_w[piece] = own
        return grad_x, grad_w, None, None, None, None


def _of_products(
    grad: Tensor, norms: Tensor, out: Tensor, offset: Tensor | None, scale: float, targets: _Targets | None
) -> tuple[Tensor, Tensor]:
    """The gradient of x W^T, in one buffer; and what takes each class vector off its own: sum(grad * cos) / |w|^2."""
    buffer = out * grad if offset is None else torch.sub(out, offset).mul_(grad)
    if targets is not None:
        targets.put(buffer, targets.of(grad) * targets.slope * targets.cosine * scale)
    inverse = 1 / norms.clamp_min(SMALLEST)
    through_norms = (buffer.sum(0) * inverse * inverse).masked_fill_(norms < SMALLEST, 0.0)
    torch.mul(grad, scale * inverse, out=buffer)
    if targets is not None:
        targets.put(buffer, targets.of(buffer) * targets.slope)
    return buffer, through_norms
