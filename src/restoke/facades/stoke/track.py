"""What a Stoke object follows of its losses, on their device: each is one copy into a block, averaged a block at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from restoke import comm
from restoke.errors import CheckpointError
from restoke.world import World

BLOCK = 16  # losses between two averagings


@final
class Track:
    """The last value of so many losses, their moving average, and their total over the window of micro-batches.

    A block is taken into the average when it is full and never before: reading and saving change no bit of what comes after.
    """

    def __init__(self, losses: int, weight: float, world: World) -> None:
        wide = torch.float32 if world.device.type == "mps" else torch.float64
        self._world = world
        self._block = torch.zeros(BLOCK + 1, losses, dtype=wide, device=world.device)  # the last row is an evaluation's
        self._rows = [row.unbind() for row in self._block]
        ages = torch.arange(BLOCK - 1, -1, -1, dtype=wide)
        self._shares = (weight * (1 - weight) ** ages).to(world.device)  # of each value of a block, at its end
        self._kept = 1 - weight
        self._zero = self._block.new_zeros(losses)
        self.reset()

    def place(self, training: bool) -> tuple[Tensor, ...]:
        """Where the caller copies the next value of each loss: one scalar for each."""
        if not training:
            self._latest = BLOCK
            return self._rows[BLOCK]
        at = self._filled
        if at == BLOCK:
            at = self._fold()
        self._latest = at
        self._filled = at + 1
        return self._rows[at]

    @property
    def last(self) -> Tensor:
        """(losses,): the latest values, also of an evaluation."""
        return self._block[self._latest]

    @property
    def ema(self) -> Tensor:
        """(losses,): the moving average of the training's values; 0 before the first."""
        values = self._block[self._ema_from : self._filled]
        if self._filled == self._ema_from:
            return self._ema
        before = values[0] if self._ema_begins else self._ema  # a first value is its own average
        return torch.addmv(before, values.T, self._shares[BLOCK - len(values) :], beta=self._kept ** len(values))

    @property
    def total(self) -> Tensor:
        """(losses,): the sum over the window; 0 before its first."""
        own = self._block[self._window_from : self._filled].sum(dim=0)
        return own + self._carried if self._window_from == 0 else own

    def _fold(self) -> int:
        self._carried = self.total if self._window_from < BLOCK else self._zero
        self._ema, self._ema_begins = self.ema, self._ema_begins and self._ema_from == BLOCK
        self._filled = self._ema_from = self._window_from = 0
        return 0

    def begin_window(self) -> None:
        """The next value begins the total."""
        self._window_from = self._filled

    def begin_ema(self) -> None:
        """The next value begins the moving average."""
        self._ema, self._ema_from, self._ema_begins = self._zero, self._filled, True

    def reset(self) -> None:
        """Forget everything."""
        self._block.zero_()
        self._filled, self._latest = 0, BLOCK
        self._carried, self._window_from = self._zero, 0
        self.begin_ema()

    def state_dict(self) -> dict[str, Any]:
        """This rank's values, and the means over ranks. Collective: only a checkpoint asks for it, on every rank."""
        own = torch.stack([self.last, self._ema, self._carried, *self._block[: self._filled]])
        begins = [self._ema_from, self._ema_begins, self._window_from]
        mean = comm.mean(own, self._world)
        return {"own": own.tolist(), "mean": mean.tolist(), "begins": begins, "ranks": self._world.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Each rank's own values; at another world size the mean of all, which averages to the same."""
        saved = self._block.new_tensor(state["own" if state["ranks"] == self._world.size else "mean"])
        if saved.shape[-1] != len(self._zero):
            why = f"this run has {len(self._zero)}"
            raise CheckpointError.of("loss", saved.shape[-1], why, "give the loss functions that it was saved with")
        self._filled, self._latest = len(saved) - 3, BLOCK
        self._block[BLOCK], self._ema, self._carried = saved[0], saved[1], saved[2]
        self._block[: self._filled] = saved[3:]
        self._ema_from, self._ema_begins, self._window_from = state["begins"]
