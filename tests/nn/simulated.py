"""Groups of any size whose ranks are threads of this process: what each rank of a real group would compute."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from restoke.distributed import Group


class Meeting:
    """In the place of torch's process group: every thread brings its tensor, and takes what all of them make."""

    def __init__(self, n: int) -> None:
        self.barrier = Barrier(n, timeout=20)
        self.brought: list[Tensor] = [torch.empty(0)] * n

    def all_of(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.brought[rank] = tensor.clone()
        self.barrier.wait()
        found = list(self.brought)
        self.barrier.wait()
        return found


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """`fn(group, *args)` on every rank of a group of n."""
    meeting = Meeting(n)
    groups = [Group(tuple(range(n)), rank, (meeting, rank)) for rank in range(n)]

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        found = torch.stack(group[0].all_of(group[1], tensor))
        tensor.copy_(found.amax(0) if op == dist.ReduceOp.MAX else found.sum(0))

    def all_gather(parts: list[Tensor], tensor: Tensor, group: Any = None) -> None:
        for part, found in zip(parts, group[0].all_of(group[1], tensor), strict=True):
            part.copy_(found)

    def on(group: Group) -> Any:
        try:
            return fn(group, *args)
        except BaseException:
            meeting.barrier.abort()
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(n) as threads:
        patch.setattr(dist, "all_reduce", all_reduce)
        patch.setattr(dist, "all_gather", all_gather)
        return [each.result() for each in [threads.submit(on, group) for group in groups]]
