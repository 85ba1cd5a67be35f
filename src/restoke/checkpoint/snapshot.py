"""A copy of tensors in host memory, so that training may change the originals while the copy is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from restoke.checkpoint.container import BITS, in_order


@final
class Snapshot:
    """One buffer, kept from save to save: to touch memory for the first time takes longer than to copy into it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies, valid until the next call; when this returns, the originals may be changed.

        Raises:
            RuntimeError: the memory does not suffice.
        """
        devices = {tensor.device for tensor in tensors.values()} - {torch.device("cpu")}
        self._reserve(sum(tensor.nbytes for tensor in tensors.values()), pinned=bool(devices))
        copies, start = {}, 0
        for key in in_order(tensors):
            source = tensors[key].detach().resolve_conj().resolve_neg()
            memory = self._buffer[start : (start := start + source.nbytes)]
            bits = memory.view(BITS[source.element_size()]).view(source.shape)
            bits.copy_(source.view(bits.dtype), non_blocking=True)
            copies[key] = bits.view(source.dtype)
        for device in devices:
            torch.accelerator.synchronize(device)
        return copies

    def _reserve(self, size: int, pinned: bool) -> None:
        if self._buffer.numel() < size:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # the old memory goes first
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
