"""What a Stoke object follows of its losses: their last values, a moving average, and the total of a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from restoke import comm
from restoke.errors import CheckpointError, SessionError
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
        wide = torch.float32 if world.device.type == "mps" else torch.float64
        self._block = torch.zeros(BLOCK + 1, losses, dtype=wide, device=world.device)  # the last row is an evaluation's
        self._zero = self._block.new_zeros(losses)
        self._slots = self._block[:BLOCK].view(-1).unbind()
        self._at = [0]  # the next slot; in a list, since `following` counts as well
        self.reset()

    def following(self, function: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
        """The only loss's function, whose values are taken as it is called: once in each micro-batch, so it is written out."""
        slots, at, take = self._slots, self._at, self.take

        def loss(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            if module.training:
                try:
                    slots[at[0]].copy_(value.data)  # as detach, for less
                    at[0] += 1
                    return value
                except (IndexError, RuntimeError, AttributeError, TypeError):
                    pass  # the block is full, or the value is no scalar tensor
            take(module.training, (value,))
            return value

        return loss

    def take(self, training: bool, values: Sequence[Any]) -> None:
        """The next value of each loss; an evaluation's is neither averaged nor totalled.

        Raises SessionError where one is no single number in a tensor; then none of them is taken.
        """
        numbers = [one_number(value).data.reshape(()) for value in values]
        if training and self._at[0] == len(self._slots):
            self._fold()
        first = self._at[0]
        slots = self._slots[first : first + self.losses] if training else self._block[BLOCK].unbind()
        for slot, number in zip(slots, numbers, strict=True):
            slot.copy_(number)  # since a script may change its loss in place
        if training:
            self._at[0] = first + self.losses
        else:
            self._evaluated = first

    @property
    def last(self) -> Tensor:
        """The latest values, also of an evaluation; 0 before the first."""
        at = self._at[0]
        return self._block[BLOCK if self._evaluated == at else at // self.losses - 1]

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
        ages = torch.arange(count - 1, -1, -1, dtype=self._zero.dtype, device=self._zero.device)
        return torch.addmv(before, values.T, self.weight * (1 - self.weight) ** ages, beta=(1 - self.weight) ** count)

    @property
    def total(self) -> Tensor:
        """The sum over the window; 0 before its first."""
        return self._carried + self._rows(self._window_from).sum(dim=0)

    def begin_ema(self) -> None:
        """The next value begins the moving average."""
        self._ema, self._ema_from, self._ema_begins = self._zero, self._at[0], True

    def begin_window(self) -> None:
        """The next value begins the total."""
        self._window_from, self._carried = self._at[0], self._zero

    def reset(self) -> None:
        """Forget everything."""
        self._at[0] = self._evaluated = 0
        self._block[BLOCK] = 0
        self.begin_ema()
        self.begin_window()

    def state_dict(self) -> dict[str, Any]:
        """This rank's values, and the means over ranks. Collective: only a checkpoint asks for it, on every rank."""
        begins = self._ema_begins and self._ema_from == self._at[0]
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
        rows = self._block.new_tensor(state["own" if own else "mean"])
        if rows.shape[-1] != self.losses:
            why = f"this run has {self.losses}"
            raise CheckpointError.of("loss", rows.shape[-1], why, "give the loss functions that it was saved with")
        count = len(rows) - 3
        self._at[0] = self._evaluated = count * self.losses
        self._block[BLOCK], self._block[:count] = rows[0], rows[3:]
        self._ema, self._carried = rows[1], rows[2]
        self._ema_begins, self._ema_from, self._window_from = state["marks"] if own else (state["begins"], 0, 0)

    def _rows(self, begin: int) -> Tensor:
        """The values from there on, as (micro-batches, losses)."""
        return self._block[begin // self.losses : self._at[0] // self.losses]

    def _fold(self) -> None:
        """Average and total take in the block's values."""
        self._carried, self._ema = self.total, self.ema
        self._ema_begins = self._ema_begins and self._ema_from == self._at[0]
        self._block[BLOCK] = self.last
        self._at[0] = self._evaluated = 0
        self._ema_from = self._window_from = 0


def one_number(value: Any) -> Tensor:
    """The value itself. Raises SessionError where it is no single number in a tensor."""
    if not isinstance(value, Tensor) or (value.ndim and value.numel() != 1):
        got = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        instead = "reduce it (.mean()), or give several loss functions as a list"
        raise SessionError.of("loss", got, "a loss is one number in a tensor", instead)
    return value
