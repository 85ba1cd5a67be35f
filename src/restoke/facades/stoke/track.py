"""What a Stoke object follows of its losses: their last values, a moving average, and the total of a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from restoke import comm
from restoke.errors import CheckpointError
from restoke.world import World

BLOCK = 256  # micro-batches whose values wait on the device between two averagings


@final
class Track:
    """The last value of so many losses, their moving average, and their total over the window of micro-batches, each (losses,).

    All stay on their device, which nothing waits for: taking a loss is one copy of one number, and only a full block of them
    is averaged. Reading and saving change no bit of what comes after.
    """

    def __init__(self, losses: int, weight: float, world: World) -> None:
        self.losses, self.weight, self.world = losses, weight, world
        self._wide = torch.float32 if world.device.type == "mps" else torch.float64
        self._zero = torch.zeros(losses, dtype=self._wide, device=world.device)
        self._full = BLOCK * losses  # where in the block the row of evaluations begins
        self._next = 0  # in the block
        self._allot(torch.float32)
        self.reset()

    def take_one(self, training: bool, value: Tensor) -> None:
        """As `take`, of the only loss: once in each micro-batch, so the usual case is written out."""
        if value.ndim or value.dtype is not self._dtype or not training:
            self.take(training, (value,))
            return
        self._latest = at = self._next
        self._slots[at].copy_(value.data)  # as detach, for less
        self._next = at = at + 1
        if at == self._full:
            self._fold()

    def take(self, training: bool, values: Sequence[Tensor]) -> None:
        """The next value of each loss, of one element; an evaluation's is neither averaged nor totalled."""
        self._latest = at = self._next if training else self._full
        for value in values:
            if value.dtype is not self._dtype:
                self._widen(value.dtype)
            # a copy, since a script may change its loss in place
            self._slots[at].copy_(value.detach() if value.ndim == 0 else value.detach().reshape(()))
            at += 1
        if training:
            self._next = at
            if at == self._full:
                self._fold()

    def _allot(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._block = torch.zeros(BLOCK + 1, self.losses, dtype=dtype, device=self.world.device)
        self._slots = self._block.view(-1).unbind()

    def _widen(self, dtype: torch.dtype) -> None:
        """Make room for a wider dtype; a narrower one fits as it is."""
        wider = torch.promote_types(dtype, self._dtype)
        if wider is not self._dtype and self.world.device.type != "mps":
            before = self._block
            self._allot(wider)
            self._block.copy_(before)

    @property
    def last(self) -> Tensor:
        """The latest values, also of an evaluation; 0 before the first."""
        return self._block[self._latest // self.losses].to(self._wide)

    @property
    def ema(self) -> Tensor:
        """The moving average of the training's values; 0 before the first."""
        return self._averaged(self._rows(self._ema_from))

    def _averaged(self, values: Tensor) -> Tensor:
        """The average after these rows of values more."""
        count = len(values)
        if count == 0:
            return self._ema
        before = values[0] if self._ema_begins else self._ema  # a first value is its own average
        ages = torch.arange(count - 1, -1, -1, dtype=self._wide, device=self._zero.device)
        return torch.addmv(before, values.T, self.weight * (1 - self.weight) ** ages, beta=(1 - self.weight) ** count)

    @property
    def total(self) -> Tensor:
        """The sum over the window; 0 before its first."""
        return self._carried + self._rows(self._window_from).sum(dim=0)

    def begin_ema(self) -> None:
        """The next value begins the moving average."""
        self._ema, self._ema_from, self._ema_begins = self._zero, self._next, True

    def begin_window(self) -> None:
        """The next value begins the total."""
        self._window_from, self._carried = self._next, self._zero

    def reset(self) -> None:
        """Forget everything."""
        self._next, self._latest = 0, self._full
        self._block[BLOCK] = 0
        self.begin_ema()
        self.begin_window()

    def state_dict(self) -> dict[str, Any]:
        """This rank's values, and the means over ranks. Collective: only a checkpoint asks for it, on every rank."""
        begins = self._ema_begins and self._ema_from == self._next
        summary = torch.stack([self.last, self.ema, self.total])
        return {
            "mean": comm.mean(summary, self.world).tolist(),
            "own": torch.cat([torch.stack([self.last, self._ema, self._carried]), self._rows(0)]).tolist(),
            "begins": begins,
            "marks": [self._ema_begins, self._ema_from, self._window_from],
            "ranks": self.world.size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Each rank's own values; at another world size the mean of all, which averages to the same."""
        own = state["ranks"] == self.world.size
        rows = torch.tensor(state["own" if own else "mean"], dtype=self._wide, device=self._zero.device)
        if rows.shape[-1] != self.losses:
            why = f"this run has {self.losses}"
            raise CheckpointError.of("loss", rows.shape[-1], why, "give the loss functions that it was saved with")
        self._next, self._latest = self.losses * (len(rows) - 3), self._full
        self._widen(self._wide)
        self._block[BLOCK], self._block[: len(rows) - 3] = rows[0], rows[3:]
        self._ema, self._carried = rows[1], rows[2]
        self._ema_begins, self._ema_from, self._window_from = state["marks"] if own else (state["begins"], 0, 0)

    def _rows(self, begin: int) -> Tensor:
        """The values from there on, as (micro-batches, losses)."""
        return self._block[begin // self.losses : self._next // self.losses].to(self._wide)

    def _fold(self) -> None:
        """Average and total take in the block's values."""
        self._carried, self._ema = self.total, self.ema
        self._ema_begins = self._ema_begins and self._ema_from == self._next
        self._block[BLOCK] = self._block[self._latest // self.losses]
        self._next, self._latest = 0, self._full
        self._ema_from = self._window_from = 0
