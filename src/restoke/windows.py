"""Windows of micro-batches: how long this one is, and whether this micro-batch ends it. Loaders say when an epoch ends."""

from __future__ import annotations

from typing import Any, final


@final
class Windows:
    """`length` micro-batches make the current window, of which `done` are complete; `ending` says that this one is its last.

    A loader that watches over its own end (`restoke.data.Loader`) shortens the last window of an epoch to what is left of
    it. Loaders nest: a validation loader that runs inside an epoch does not touch the training loader's windows.
    """

    def __init__(self, accumulate: int) -> None:
        self._accumulate = accumulate
        self._loaders: list[tuple[Any, int | None, bool]] = []
        self.length = accumulate
        self.done = 0
        self._last = False

    @property
    def ending(self) -> bool:
        return self.done + 1 >= self.length or self._last

    @property
    def loaders(self) -> list[Any]:
        """Those that are being iterated, the outermost first."""
        return [entry[0] for entry in self._loaders]

    def close(self) -> None:
        """The next micro-batch begins a window of full length, until a loader says otherwise."""
        self.done = 0
        self.length = self._accumulate

    def resize(self, accumulate: int) -> None:
        """From the next window on, full ones have so many micro-batches."""
        self._accumulate = accumulate
        if self.done == 0:
            self.length = accumulate

    def begin(self, loader: Any) -> None:
        """A loader starts an epoch."""
        self._loaders.append((loader, None, False))

    def batch(self, loader: Any, remaining: int | None, last: bool) -> None:
        """A loader hands out a batch; `remaining` counts it and those after it, where that is known.

        It is the one that is followed from here on: another that was left half-way, and is still held, counts no more.
        """
        others = [entry for entry in self._loaders if entry[0] is not loader]
        if len(others) < len(self._loaders):
            self._loaders = [*others, (loader, remaining, last)]
            self._follow(remaining, last)

    def end(self, loader: Any) -> None:
        """A loader's epoch is over, or was left."""
        self._loaders = [entry for entry in self._loaders if entry[0] is not loader]
        self._follow(*(self._loaders[-1][1:] if self._loaders else (None, False)))

    def _follow(self, remaining: int | None, last: bool) -> None:
        self._last = last
        if self.done == 0:
            self.length = self._accumulate if remaining is None else min(self._accumulate, remaining)
