"""Peaks by the device's own allocator, where it counts: what no tracker sees is in them, too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

COUNTING = ("cuda", "xpu")  # device types whose allocator keeps its peak


@frozen(eq=False, repr=False)
class Allocator:
    """Functions of one device's allocator: bytes now, the most bytes since `begin`, and where that begins anew."""

    now: Callable[[], int]
    peak: Callable[[], int]
    begin: Callable[[], None]


def allocator(device: torch.device) -> Allocator | None:
    """The device's, or None where it does not count."""
    if device.type not in COUNTING:
        return None
    memory = torch.accelerator
    return Allocator(
        lambda: memory.memory_allocated(device),
        lambda: memory.max_memory_allocated(device),
        lambda: memory.reset_peak_memory_stats(device),
    )
