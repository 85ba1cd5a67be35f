"""Counts a loader's epochs, tells its samplers, and follows where the user told them instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from restoke.data.protocols import Epochal


@final
class Epochs:
    """`current` is the epoch of the next iteration."""

    def __init__(self, samplers: Iterable[Any]) -> None:
        self._samplers = [item for item in samplers if isinstance(item, Epochal)]
        self._told = [_shown(item) for item in self._samplers]
        self.current = max([0, *(shown for shown in self._told if shown is not None)])

    def follow(self) -> None:
        """Where a sampler shows another epoch than it did last, the user has told it: that is the current one."""
        for index, sampler in enumerate(self._samplers):
            shown = _shown(sampler)
            if shown is not None and shown != self._told[index]:
                self.current, self._told[index] = shown, shown

    def tell(self, epoch: int) -> None:
        """Make it the current epoch, of the samplers too."""
        self.current = epoch
        for sampler in self._samplers:
            sampler.set_epoch(epoch)
        self._told = [_shown(item) for item in self._samplers]


def _shown(sampler: Any) -> int | None:
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) else None
