"""The losses of a Stoke object: called, divided, and followed on the device; read only when something asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from restoke import comm
from restoke.errors import SpecError
from restoke.facades.stoke.track import Track, one_number
from restoke.precision import Context
from restoke.session import Session

LENGTH = "_restoke_length"  # of a returned loss: what it was divided by. A weak dictionary would cost more than the division
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
    return [one_number(value) for value in (loss or [None] if isinstance(loss, list | tuple) else [loss])]


@final
class Losses:
    """One loss, or several of the same arguments; `track` follows them. They are this rank's own and stay on its device: a call
    synchronises nothing and talks to no other rank."""

    def __init__(self, functions: list[Loss], single: bool, session: Session, weight: float) -> None:
        self.functions, self.single = functions, single
        self.track = Track(len(functions), weight, session.world)
        self._world, self._windows, self._divide = session.world, session.windows, session.divide
        self._accumulates = session.spec.accumulate > 1
        self._length = 1
        self._context = session.forward_context
        self.call = self._one(session.parts.module) if single else self._several(session.parts.module)
        """What `Stoke.loss` is."""
        for function in functions:
            if isinstance(function, nn.Module):
                function.to(session.world.device)

    def _one(self, module: nn.Module) -> Loss:
        loss = self.track.following(_under(self._context, self.functions[0]), module)

        def share(*args: Any, **kwargs: Any) -> Tensor:
            return self._share(loss(*args, **kwargs), module.training)

        return share if self._accumulates else loss

    def _several(self, module: nn.Module) -> Callable[..., list[Tensor]]:
        def losses(*args: Any, **kwargs: Any) -> list[Tensor]:
            with self._context():
                values = [function(*args, **kwargs) for function in self.functions]
            self.track.take(module.training, values)
            return [self._share(value, module.training) for value in values] if self._accumulates else values

        return losses

    def _share(self, value: Tensor, training: bool) -> Tensor:
        """The value's share of the window; it bears what it was divided by, for `undivided`."""
        share, self._length = (self._divide(value), self._windows.length) if training else (value, 1)
        vars(share)[LENGTH] = self._length
        return share

    def undivided(self, loss: Any) -> list[Tensor]:
        """What a call returned, before it was divided. Of a tensor made from such losses, the last call decides."""
        return [share * vars(share).get(LENGTH, self._length) for share in tensors(loss)]

    def accumulated(self) -> list[Tensor]:
        """The mean over the micro-batches of this window so far, of each loss."""
        return list((self.track.total / (self._windows.done + 1)).unbind())

    def mean(self, losses: Sequence[Tensor], device: torch.device | str | None = None) -> list[float]:
        """The mean over ranks of each, in float32 at least, by one collective. Every rank calls this."""
        last = self.track.last
        row = torch.stack([loss.detach().reshape(()).to(device or last.device, last.dtype) for loss in losses])
        means: list[float] = comm.mean(row, self._world).tolist()
        return means

    def shaped(self, values: Tensor) -> float | list[float]:
        """One number for one loss, a list for several. Waits for the device."""
        numbers: list[float] = values.tolist()
        return numbers[0] if self.single else numbers


def _under(context: Context, function: Loss) -> Loss:
    """The function under the precision's context, where there is one."""
    if context is nullcontext:
        return function

    def within(*args: Any, **kwargs: Any) -> Tensor:
        with context():
            return function(*args, **kwargs)

    return within
