"""How many buffers of the logits' size a loss needs at its peak, the logits themselves counted."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed import Shard, group_of
from restoke.memory.tracker import Tracker
from restoke.nn import describe
from restoke.nn.functional import parallel_cross_entropy


def dense(logits: Tensor, target: Tensor, classes: int) -> None:
    F.cross_entropy(logits, target).backward()


def of_dtensor(logits: Tensor, target: Tensor, classes: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as Cut
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with loss_parallel():
        F.cross_entropy(DTensor.from_local(logits, mesh, [Cut(1)]), target).backward()


def ours(logits: Tensor, target: Tensor, classes: int) -> None:
    shard = Shard(group_of(), 1, classes)
    parallel_cross_entropy(logits if shard.group.size == 1 else describe(logits, shard), target, shard=shard).backward()


LOSSES: dict[str, Callable[[Tensor, Tensor, int], None]] = {"dense": dense, "loss_parallel": of_dtensor, "separate": ours}


def buffers(name: str, classes: int, rows: int) -> float:
    """At the peak of forward and backward, from logits that somebody keeps."""
    local = classes if name == "dense" else Shard(group_of(), 1, classes).length
    logits = torch.zeros(rows, local).requires_grad_()
    target = torch.arange(rows)
    tracker = Tracker("cpu")
    tracker.start()
    LOSSES[name](logits, target, classes)
    tracker.stop()
    tracker.fold()
    return tracker.peak.nbytes / logits.nbytes
