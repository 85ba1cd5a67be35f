"""A linear layer over sharded classes and its cross-entropy in one: some classes' logits exist at a time, never all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor
from torch.autograd.function import once_differentiable

from restoke.distributed.collectives import all_reduce, copy
from restoke.distributed.groups import ALONE, Group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.described import plain, shard_of
from restoke.nn.functional.class_targets import ALL, Aims
from restoke.nn.functional.cross_entropy import How, checked
from restoke.nn.functional.cross_entropy_parts import SUMS, combine, exactly
from restoke.nn.tags import get_parallel_dim

LOGITS = {"cpu": 1 << 20}  # that exist at a time
LOGITS_ELSEWHERE = 1 << 23
FEWEST = 128  # classes at a time: a narrower product is slow


def parallel_linear_cross_entropy(
    input: Tensor,  # noqa: A002 (torch's name)
    linear_weight: Tensor,
    target: Tensor,
    *,
    shard: Shard | None,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    rows: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Tensor:
    """`parallel_cross_entropy(parallel_linear(input, linear_weight, linear_bias, 1), target, ...)`, without the logits.

    At most `rows * chunk` logits exist at a time; the backward computes them anew. Collectives are those of the two: two
    small ones forward, one of the input's gradient backward (with `rows`, and one of the losses').

    Args:
        input: shape (..., features), alike on every rank.
        linear_weight: of this rank's classes, shape (classes, features).
        target: numbers of classes of the whole, shape (...), or probabilities, (..., classes): whole, or a described part.
        shard: which classes the weight is of, such as `layer.shards["weight"]`; None: of all.
        linear_bias: of this rank's classes, shape (classes).
        weight: of all classes, or a described part, shape (classes).
        rows: each rank's number of rows, the input's first dimension: as for `parallel_cross_entropy`.
        chunk: classes at a time; None: a quarter of them at most, and so many at most that their logits take 4 MB in float32
            on a CPU, 32 MB elsewhere, but 128.

    Raises:
        SpecError: something does not fit.
        DataError: on every rank, where a target is no class or targets are unlike. (On a GPU an assertion of the kernels.)
    """
    how = How(weight, ignore_index, reduction, label_smoothing, rows)
    if chunk is not None and chunk < 1:
        raise SpecError.of("chunk", chunk, "some classes are worked on at a time", "1 or more, or None")
    shard = _classes(input, linear_weight, linear_bias, shard)
    work = _autocast_dtype(input.device) or linear_weight.dtype
    dtype = torch.promote_types(torch.promote_types(work, target.dtype if target.is_floating_point() else work), torch.float32)
    x = copy(plain(input), shard.group).flatten(0, -2) if input.ndim > 1 else copy(plain(input), shard.group).unsqueeze(0)
    aims = _aims(x, input.shape[:-1], target, shard, how, dtype)
    run = _Run(aims, shard.group, chunk or classes_at_a_time(x.device.type, len(x), shard.length), work, dtype)
    with exactly(x.device):
        loss, divisors = _LinearLosses.apply(x, linear_weight, linear_bias, run)  # type: ignore[no-untyped-call]
    return how.reduced(loss, divisors, input.shape[:-1], shard.group)


def classes_at_a_time(device: str, rows: int, classes: int) -> int:
    """What `chunk` is by default: a quarter of the classes at most."""
    return max(FEWEST, min(LOGITS.get(device, LOGITS_ELSEWHERE) // max(1, rows), -(-classes // 4)))


def _autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Of products under autocast; None without."""
    if not (torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)):
        return None
    return torch.get_autocast_dtype(device.type)


def _classes(x: Tensor, weight: Tensor, bias: Tensor | None, shard: Shard | None) -> Shard:
    """Which of them the weight is of. Raises SpecError where shapes and dtypes are not those of a linear layer."""
    if shard is None and get_parallel_dim(weight) is not None:
        raise SpecError.of("shard", None, "the weight is one rank's part", 'that of its layer: layer.shards["weight"]')
    shard = (shard or Shard(ALONE, 0, len(weight))).along(0)
    if shard_of(x) is not None:
        raise SpecError.of("input", "a part", "each class asks for all features", "restoke.distributed.gather before")
    if weight.ndim != 2 or len(weight) != shard.length or (bias is not None and bias.shape != weight.shape[:1]):
        got = f"{tuple(weight.shape)}, bias {None if bias is None else tuple(bias.shape)}"
        raise SpecError.of(
            "linear_weight", got, f"this rank holds {shard.length} classes of {shard.size}", "(classes, features)"
        )
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise SpecError.of("input", tuple(x.shape), f"classes have {weight.shape[1]} features", f"(..., {weight.shape[1]})")
    if x.device != weight.device or (x.dtype != weight.dtype and _autocast_dtype(x.device) is None):
        why = f"the weight is {weight.dtype} on {weight.device}"
        raise SpecError.of("input", f"{x.dtype} on {x.device}", why, "the same, or autocast")
    return shard


def _aims(x: Tensor, shape: torch.Size, target: Tensor, shard: Shard, how: How, dtype: torch.dtype) -> Aims:
    """What the rows aim at, as if these logits existed: no memory is behind them."""
    logits = x.detach().new_empty(()).expand(*shape, shard.length)
    if target.is_floating_point() and target.ndim > 2:
        logits, target = logits.flatten(0, -2), target.flatten(0, -2)
    elif not target.is_floating_point() and len(shape) > 1:
        logits = logits.movedim(-1, 1)
    return checked(logits, target, shard.along(0 if logits.ndim == 1 else 1), how, dtype, len(x), shape[0] if shape else 1)


@final
@frozen(eq=False)
class _Run:
    """How the classes are gone through: `work` is the dtype of products, `dtype` that of the loss."""

    aims: Aims
    group: Group
    chunk: int
    work: torch.dtype
    dtype: torch.dtype

    def scores(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some classes at a time: which, their weights, and a buffer of their logits."""
        for first in range(0, len(weight), self.chunk):
            classes = slice(first, min(first + self.chunk, len(weight)))
            part = weight[classes].to(self.work)
            own = None if bias is None else bias[classes].to(self.work)
            yield classes, part, F.linear(x, part, own).to(self.dtype)  # kept by no name here: the next comes when it is gone


class _LinearLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, run: _Run) -> tuple[Tensor, Tensor]:
        highest = torch.full((len(x),), torch.finfo(run.dtype).min, dtype=run.dtype, device=x.device)
        sums = highest.new_zeros((SUMS, len(x)))
        for classes, _, scores in run.scores(x.to(run.work), weight, bias):
            higher = torch.maximum(highest, scores.amax(1))
            _shift(sums, highest - higher)
            highest = higher
            mass, aim = run.aims.measure(ALL, classes, scores.sub_(highest.unsqueeze(1)))
            sums[2] += mass
            sums[1] += aim
            sums[0] += scores.exp_().sum(1)
            del scores
        own = highest.clone()
        all_reduce(highest, run.group, dist.ReduceOp.MAX)
        _shift(sums, own - highest)
        sums[3], sums[4:] = run.aims.divisors(), run.aims.checks()
        loss = combine(sums, run.aims.kept, run.group)
        ctx.save_for_backward(x, weight, bias, highest, sums)
        ctx.run = run
        divisors = sums[3].clone()
        ctx.mark_non_differentiable(divisors)
        return loss, divisors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, bias, highest, sums = ctx.saved_tensors
        run, (needs_x, needs_weight, needs_bias, _) = ctx.run, ctx.needs_input_grad
        grad = torch.where(run.aims.kept, grad, 0)
        scale = (grad * sums[2] / sums[0]).unsqueeze(1)
        grad_x = torch.zeros_like(x, dtype=run.dtype) if needs_x else None
        grad_weight = torch.empty_like(weight) if needs_weight else None
        grad_bias = torch.empty_like(bias) if needs_bias else None
        wide = x.to(run.work)
        with exactly(x.device):
            for classes, part, scores in run.scores(wide, weight, bias):
                scores.sub_(highest.unsqueeze(1)).exp_().mul_(scale)
                run.aims.take_(ALL, classes, scores, grad)
                if grad_bias is not None:
                    grad_bias[classes] = scores.sum(0)
                narrow = scores.to(run.work)
                if grad_x is not None:
                    _add_product(grad_x, narrow, part)
                if grad_weight is not None:
                    _put_product(grad_weight[classes], narrow.t(), wide)
                del scores, narrow
        return None if grad_x is None else grad_x.to(x.dtype), grad_weight, grad_bias, None


def _shift(sums: Tensor, fall: Tensor) -> None:
    """Sums that are relative to a score, relative to one that is higher, in place."""
    sums[0] *= fall.exp()
    sums[1] += fall * sums[2]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _put_product(there: Tensor, a: Tensor, b: Tensor) -> None:
    if there.dtype == a.dtype:
        torch.mm(a, b, out=there)
    else:
        there.copy_(a @ b)
