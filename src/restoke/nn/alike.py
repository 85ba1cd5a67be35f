"""Whether the ranks that share a layer hand it the same input: asked in its first forward, for training and for evaluation.

What each rank computes is a part of one result, which makes sense for one input alone. Ranks with batches of their own that
were not gathered, or with dropout of their own before the layer, would train on a mixture and never say so.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from restoke.distributed.groups import Group
from restoke.errors import SpecError

ASKED = "_restoke_asked"  # in a module's own dict: the modes in which it was asked
MOST = 6  # dimensions whose lengths are told
UNLIKE = 1e-2  # of the sum of absolute values; the same work differs by rounding alone


def check_alike(module: nn.Module, tensor: Tensor, group: Group) -> None:
    """One small collective, waited for, in the module's first forward of each mode; nothing after that.

    Raises:
        SpecError: on every rank of the group, if the shapes or the values differ.
    """
    asked: set[bool] = vars(module).setdefault(ASKED, set())
    if module.training in asked or group.size == 1 or tensor.is_meta or torch.compiler.is_compiling():
        return
    asked.add(module.training)
    own = _told(tensor)
    all_ = [torch.empty_like(own) for _ in range(group.size)]
    dist.all_gather(all_, own, group=group.handle)
    told = torch.stack(all_).cpu()
    name = type(module).__name__
    shapes = [tuple(int(n) for n in row[1 : 1 + min(int(row[0]), MOST)]) for row in told]
    if len(set(shapes)) > 1:
        why = f"the ranks {group.ranks} that share {name} hand it inputs of different shapes"
        raise SpecError.of("input", shapes, why, "restoke.distributed.gather_rows(x, group) before it")
    sums, sizes = told[:, -2], told[:, -1]
    # what is not finite compares as unlike nothing: an overflow is another matter
    if bool(((sums - sums[0]).abs() > UNLIKE * sizes.max()).any() | ((sizes - sizes[0]).abs() > UNLIKE * sizes.max()).any()):
        why = f"the ranks {group.ranks} that share {name} hand it different inputs, and each computes a part for its own"
        instead = "gather_rows(x, group) before it, or the same batches and the same dropout on these ranks (tensor=N)"
        raise SpecError.of("input", f"sums {[round(float(value), 4) for value in sums]}", why, instead)


@torch.no_grad()
def _told(tensor: Tensor) -> Tensor:
    """The number of dimensions, their lengths, a sum that tells rows apart, and the sum of absolute values."""
    wide = tensor.detach().reshape(-1).to(torch.float32 if tensor.device.type == "mps" else torch.float64)
    weights = torch.linspace(0.5, 1.5, max(wide.numel(), 1), device=wide.device, dtype=wide.dtype)[: wide.numel()]
    shape = [tensor.ndim, *tensor.shape[:MOST], *(0 for _ in range(MOST - tensor.ndim))]
    head = torch.tensor(shape, dtype=wide.dtype, device=wide.device)
    return torch.cat([head, torch.stack([(wide * weights).sum(), wide.abs().sum()])])
