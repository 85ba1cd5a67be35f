"""Counts what a piece of code sends, and how large its tensors are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from restoke.memory.tracker import Tracker

NAMES = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_gather_into_tensor", "send", "recv")


@contextmanager
def collectives() -> Iterator[list[str]]:
    """The collectives that are called, by name, and their reduction."""
    found: list[str] = []

    def counting(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            op = args[1] if name == "all_reduce" and len(args) > 1 else None
            found.append(f"{name} {op.name}" if op is not None and hasattr(op, "name") else name)
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setattr(dist, name, counting(name, getattr(dist, name)))
        yield found


class Largest(TorchDispatchMode):
    """The largest number of elements that lie behind any tensor that an operator gave."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return result


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most bytes of tensors that operators see at one time."""
    found: list[int] = []
    tracker = Tracker("cpu")
    tracker.start()
    try:
        yield found
    finally:
        tracker.stop()
        tracker.fold()
        found.append(tracker.peak.nbytes)
