"""What a Stoke object follows of its losses: their last values, a moving average, and the total of a window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from restoke import comm
from restoke.errors import CheckpointError
from restoke.world import World

BLOCK = 16  # values that stay on a device between two averagings


def track(losses: int, weight: float, world: World) -> Track:
    """Follows so many losses where they are. A number on the CPU is there to be read; one on another device is not."""
    return HostTrack(losses, weight, world) if world.device.type == "cpu" else DeviceTrack(losses, weight, world)


class Track(ABC):
    """The last value of so many losses, their moving average, and their total over the window of micro-batches, each (losses,).

    Reading and saving change no bit of what comes after.
    """

    def __init__(self, losses: int, weight: float, world: World) -> None:
        self.losses, self.weight, self.world = losses, weight, world
        self.reset()

    @abstractmethod
    def take(self, training: bool, values: Sequence[Tensor]) -> None:
        """The next value of each loss, of one element; an evaluation's is neither averaged nor totalled."""

    @property
    @abstractmethod
    def last(self) -> Tensor:
        """The latest values, also of an evaluation."""

    @property
    @abstractmethod
    def ema(self) -> Tensor:
        """The moving average of the training's values; 0 before the first."""

    @property
    @abstractmethod
    def total(self) -> Tensor:
        """The sum over the window; 0 before its first."""

    @abstractmethod
    def begin_ema(self) -> None:
        """The next value begins the moving average."""

    @abstractmethod
    def begin_window(self) -> None:
        """The next value begins the total."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    @abstractmethod
    def _saved(self) -> tuple[list[Tensor], list[Any]]:
        """Rows of last, average and total, and whether the average has no value yet; behind these, what is the class's own."""

    @abstractmethod
    def _restore(self, rows: Tensor, marks: list[Any]) -> None:
        """Take what `_saved` gave, of the other class too."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's values, and the means over ranks. Collective: only a checkpoint asks for it, on every rank."""
        rows, marks = self._saved()
        own = torch.stack(rows)
        return {"own": own.tolist(), "mean": comm.mean(own, self.world).tolist(), "marks": marks, "ranks": self.world.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Each rank's own values; at another world size the mean of all, which averages to the same."""
        saved = torch.tensor(state["own" if state["ranks"] == self.world.size else "mean"], dtype=torch.float64)
        if saved.shape[-1] != self.losses:
            why = f"this run has {self.losses}"
            raise CheckpointError.of("loss", saved.shape[-1], why, "give the loss functions that it was saved with")
        self._restore(saved, state["marks"])


@final
class HostTrack(Track):
    """As plain numbers."""

    _last: list[float]
    _ema: list[float]
    _total: list[float]
    _ema_begins: bool

    def take(self, training: bool, values: Sequence[Tensor]) -> None:
        last, ema, total, weight, begins = self._last, self._ema, self._total, self.weight, self._ema_begins
        for at, value in enumerate(values):
            last[at] = number = value.item()
            if training:
                ema[at] = number if begins else weight * number + (1 - weight) * ema[at]
                total[at] += number
        if training:
            self._ema_begins = False

    @property
    def last(self) -> Tensor:
        return torch.tensor(self._last, dtype=torch.float64)

    @property
    def ema(self) -> Tensor:
        return torch.tensor(self._ema, dtype=torch.float64)

    @property
    def total(self) -> Tensor:
        return torch.tensor(self._total, dtype=torch.float64)

    def begin_ema(self) -> None:
        self._ema, self._ema_begins = [0.0] * self.losses, True

    def begin_window(self) -> None:
        self._total = [0.0] * self.losses

    def reset(self) -> None:
        self._last = [0.0] * self.losses
        self.begin_ema()
        self.begin_window()

    def _saved(self) -> tuple[list[Tensor], list[Any]]:
        return [self.last, self.ema, self.total], [self._ema_begins]

    def _restore(self, rows: Tensor, marks: list[Any]) -> None:
        self._last, self._ema, self._total = rows[:3].tolist()
        self._ema_begins = marks[0]


@final
class DeviceTrack(Track):
    """On their device, which nothing waits for: each value is one copy into a block, and only a full block is averaged."""

    _rows: list[tuple[Tensor, ...]]  # the scalars of the block; its last row is an evaluation's
    _latest: int
    _filled: int
    _window_from: int
    _ema_from: int
    _ema_begins: bool  # the value there is the first of all

    def take(self, training: bool, values: Sequence[Tensor]) -> None:
        for slot, value in zip(self._place(training), values, strict=True):
            slot.copy_(value.detach().reshape(()))

    def _place(self, training: bool) -> tuple[Tensor, ...]:
        if not training:
            self._latest = BLOCK
        else:
            if self._filled == BLOCK:
                self._fold()
            self._latest = self._filled
            self._filled += 1
        return self._rows[self._latest]

    def _fold(self) -> None:
        self._carried = self.total
        self._ema, self._ema_begins = self.ema, self._ema_begins and self._ema_from == BLOCK
        self._filled = self._ema_from = self._window_from = 0

    @property
    def last(self) -> Tensor:
        return self._block[self._latest]

    @property
    def ema(self) -> Tensor:
        values = self._block[self._ema_from : self._filled]
        if self._filled == self._ema_from:
            return self._ema
        before = values[0] if self._ema_begins else self._ema  # a first value is its own average
        return torch.addmv(before, values.T, self._shares[BLOCK - len(values) :], beta=(1 - self.weight) ** len(values))

    @property
    def total(self) -> Tensor:
        return self._carried + self._block[self._window_from : self._filled].sum(dim=0)

    def begin_ema(self) -> None:
        self._ema, self._ema_from = self._zero, self._filled
        self._ema_begins = True

    def begin_window(self) -> None:
        self._window_from, self._carried = self._filled, self._zero

    def reset(self) -> None:
        device = self.world.device
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._filled, self._latest = 0, BLOCK
        self._block = torch.zeros(BLOCK + 1, self.losses, dtype=wide, device=device)
        self._rows = [row.unbind() for row in self._block]
        ages = torch.arange(BLOCK - 1, -1, -1, dtype=wide)
        self._shares = (self.weight * (1 - self.weight) ** ages).to(device)  # of each value of a block, at its end
        self._zero = self._block.new_zeros(self.losses)
        self.begin_ema()
        self.begin_window()

    def _saved(self) -> tuple[list[Tensor], list[Any]]:
        no_average = self._ema_begins and self._ema_from == self._filled
        own = [self._ema, self._carried, *self._block[: self._filled]]
        return [self.last, self.ema, self.total, *own], [no_average, self._ema_begins, self._ema_from, self._window_from]

    def _restore(self, rows: Tensor, marks: list[Any]) -> None:
        rows = rows.to(self._block)
        self._block[BLOCK], self._latest = rows[0], BLOCK
        own = rows[3:] if len(rows) > 3 else rows[1:]  # the host has average and total alone
        self._ema, self._carried, self._filled = own[0], own[1], len(own) - 2
        self._block[: self._filled] = own[2:]
        self._ema_begins, self._ema_from, self._window_from = marks[1:] or (marks[0], 0, 0)
