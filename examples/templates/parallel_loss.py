"""A template of a parallel loss: each row's log-sum-exp less its target's logit, over logits of which each rank has some.

That is cross-entropy, which `parallel_cross_entropy` has in full. Copy this, and put your own arithmetic in `_row_losses`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed import Shard
from restoke.distributed.collectives import all_reduce
from restoke.nn import plain, shard_of


def template_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over rows, alike on every rank.

    Args:
        logits: shape (rows, classes of this rank), a described part; or whole.
        target: shape (rows), numbers of classes of the whole, alike on every rank.
    """
    shard = shard_of(logits)  # raises where the description was lost on the way
    if shard is None:
        return F.cross_entropy(logits, target)
    return _RowLosses.apply(plain(logits), target, shard).mean()


class _RowLosses(torch.autograd.Function):
    """Two collectives forward, of one and two numbers a row, and none backward: each rank has what its gradient takes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, shard: Shard) -> Tensor:
        rows = torch.arange(len(target), device=target.device)
        here = (target >= shard.start) & (target < shard.start + shard.length)
        mine = rows[here], target[here] - shard.start
        # an empty shard joins every collective, with what changes nothing
        highest = logits.amax(1) if shard.length else logits.new_full((len(target),), -torch.inf)
        all_reduce(highest, shard.group, dist.ReduceOp.MAX)
        shifted = logits - highest.unsqueeze(1)
        sums = torch.stack([shifted.exp().sum(1), shifted.new_zeros(len(target))])
        sums[1, rows[here]] = shifted[mine]
        all_reduce(sums, shard.group)
        log_sum = sums[0].log()
        ctx.mine = mine
        ctx.save_for_backward(shifted.sub_(log_sum.unsqueeze(1)).exp_())  # the probabilities, in place of the logits' copy
        return log_sum - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (probabilities,) = ctx.saved_tensors
        of_logits = probabilities * grad.unsqueeze(1)
        rows, columns = ctx.mine
        of_logits[rows, columns] -= grad[rows]
        return of_logits, None, None
