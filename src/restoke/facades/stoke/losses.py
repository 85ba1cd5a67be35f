"""The losses of a Stoke object: called, divided, and followed on the device; read only when something asks for them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from restoke import comm
from restoke.errors import RestokeError, SessionError, SpecError
from restoke.session import Session

Loss = Callable[..., Tensor]


def read_losses(given: Any) -> list[Loss]:
    """The loss functions that a Stoke object is given. Raises SpecError: one is not callable, or there is none."""
    functions = list(given) if isinstance(given, list | tuple) else [given]
    for function in functions or [None]:
        if not callable(function):
            raise SpecError.of("loss", function, "it cannot be called", "a function of (outputs, targets), or a list of them")
    return functions


def read_weight(weight: Any) -> float:
    """The weight of the newest loss in the moving average. Raises SpecError where it is not above 0 and at most 1."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1:
        raise SpecError.of("ema_weight", weight, "it is no weight of the newest loss", "a number above 0, up to 1")
    return float(weight)


def tensors(loss: Any) -> list[Tensor]:
    """A loss or several, as a list. Raises SessionError for anything else."""
    losses = list(loss) if isinstance(loss, list | tuple) else [loss]
    for value in losses or [None]:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise _no_scalar(value)
    return losses


def _no_scalar(value: Any) -> RestokeError:
    got = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    instead = "reduce it (.mean()), or give several loss functions as a list"
    return SessionError.of("loss", got, "a loss is one number in a tensor", instead)


@final
class Losses:
    """One loss, or several of the same arguments.

    `last` is the last call's value, also of an evaluation; `ema` and `total` (over the window of micro-batches) count
    training only. They are this rank's own and stay on its device: a call synchronises nothing and talks to no other rank.
    """

    def __init__(self, functions: list[Loss], single: bool, session: Session, weight: float) -> None:
        self.functions, self.single, self._weight = functions, single, weight
        self._world, self._windows = session.world, session.windows
        self._context, self._divide, self._accumulates = session.forward_context, session.divide, session.spec.accumulate > 1
        device = session.world.device
        for function in functions:
            if isinstance(function, nn.Module):
                function.to(device)
        shape = () if single else (len(functions),)
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.last, self.ema, self.total = (torch.zeros(shape, dtype=wide, device=device) for _ in range(3))
        self._slots = [self.last] if single else list(self.last.unbind())
        self.ema_begins = self.window_begins = True
        self._lengths: MutableMapping[Any, int] = WeakIdKeyDictionary()
        self._length = 1

    def __call__(self, training: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | list[Tensor]:
        """The losses, in training each divided by the length of its window. Raises SessionError where one is no scalar."""
        with self._context():
            values: list[Any] = [function(*args, **kwargs) for function in self.functions]
        for slot, value in zip(self._slots, values, strict=True):
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise _no_scalar(value)
            slot.copy_(value.detach() if value.ndim == 0 else value.detach().reshape(()))
        if training:
            self._follow()
            values = [self._divide(value) for value in values]
        if self._accumulates:
            self._remember(values, self._windows.length if training else 1)
        return values[0] if self.single else values

    def _follow(self) -> None:
        if self.ema_begins:
            self.ema.copy_(self.last)
            self.ema_begins = False
        else:
            self.ema.lerp_(self.last, self._weight)
        if self.window_begins:
            self.total.copy_(self.last)
            self.window_begins = False
        else:
            self.total.add_(self.last)

    def _remember(self, shares: list[Tensor], length: int) -> None:
        """What these very tensors were divided by; `undivided` asks."""
        self._length = length
        for share in shares:
            self._lengths[share] = length

    def undivided(self, loss: Any) -> list[Tensor]:
        """What a call returned, before it was divided. Of a tensor made from such losses, the last call decides."""
        return [share * self._lengths.get(share, self._length) for share in tensors(loss)]

    def accumulated(self) -> list[Tensor]:
        """The mean over the micro-batches of this window so far, of each loss."""
        done = self._windows.done + 1
        return list((torch.zeros_like(self.total) if self.window_begins else self.total / done).reshape(-1).unbind())

    def mean(self, losses: Sequence[Tensor], device: torch.device | str | None = None) -> list[float]:
        """The mean over ranks of each, in float32 at least, by one collective. Every rank calls this."""
        row = torch.stack([loss.detach().reshape(()).to(device or self.last.device, self.last.dtype) for loss in losses])
        means: list[float] = comm.mean(row, self._world).tolist()
        return means

    def shaped(self, values: Sequence[float]) -> float | list[float]:
        """One number for one loss, a list for several."""
        return values[0] if self.single else list(values)

    def reset_ema(self) -> None:
        """The next loss begins the moving average."""
        self.ema_begins = True
        self.ema.zero_()

    def reset(self) -> None:
        """Forget everything that was followed."""
        self.reset_ema()
        self.window_begins = True
        self.last.zero_()
