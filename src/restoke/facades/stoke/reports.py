"""What a Stoke object tells: its losses and parameters, on the ranks that were chosen to print."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from restoke.configs import ParamNormalize
from restoke.errors import SpecError, nearest
from restoke.facades.stoke.access import Access
from restoke.facades.stoke.losses import tensors
from restoke.facades.stoke.printing import Printer, ranks_of


class Reports(Access):
    """The losses and the print helpers. The methods named here as collective are called by every rank, whoever prints."""

    _printer: Printer

    @property
    def step_loss(self) -> float | list[float]:
        """The last `loss()`, undivided, on this rank. Waits for the device, but for no other rank."""
        return self._losses.shaped(self._losses.track.last)

    @property
    def ema_loss(self) -> float | list[float]:
        """The moving average of this rank's training losses, undivided. Waits for the device, but for no other rank."""
        return self._losses.shaped(self._losses.track.ema)

    def detach_and_sync_loss(self, loss: Any, device: torch.device | str | None = None) -> Any:
        """The mean over ranks of a loss, or of each in a list or tuple, as plain numbers. Collective.

        Args:
            loss: scalar tensors; what `loss()` returned in training is divided by the accumulation, and stays so.
            device: where the mean is taken; by default the rank's own.

        Raises:
            SessionError: something in it is no scalar tensor.
        """
        means = self._losses.mean(tensors(loss), device)
        return type(loss)(means) if isinstance(loss, list | tuple) else means[0]

    def print(self, msg: Any, single_line: bool = False) -> None:
        """Print a message, or each of a list, on `info_rank`."""
        self._printer.say(msg, single_line)

    def print_on_devices(self, msg: Any, rank: Any = 0) -> None:
        """Print a message on this rank, or on each of a list."""
        self._printer.say_on(ranks_of(rank, "rank"), msg)

    def print_ema_loss(self, prepend_msg: str = "Current EMA Loss", single_line: bool = False) -> None:
        """Print the moving average, as its mean over ranks. Collective."""
        self._say_losses(prepend_msg, self._losses.mean(self._losses.track.ema.unbind()), single_line)

    def print_mean_accumulated_synced_loss(
        self,
        prepend_msg: str = "Mean Accumulated & Synced Loss",
        pre_backwards: bool = True,
        single_line: bool = False,
    ) -> None:
        """Where a window ends, print the mean of its losses over micro-batches and ranks; elsewhere do nothing. Collective.

        `pre_backwards` says where the call stands: between `loss` and `backward`, or between `backward` and `step`.
        """
        if self.session.windows.ending and self._backward_is_due is pre_backwards:
            self._say_losses(prepend_msg, self._losses.mean(self._losses.accumulated()), single_line)

    def print_synced_loss(
        self,
        loss: Tensor | list[Tensor] | tuple[Tensor, ...],
        prepend_msg: str = "Step Synced Loss",
        device: torch.device | str | None = None,
        single_line: bool = False,
    ) -> None:
        """Print what `loss()` returned as its mean over ranks, before it was divided. Collective."""
        self._say_losses(prepend_msg, self._losses.mean(self._losses.undivided(loss), device), single_line)

    def _say_losses(self, message: str, means: list[float], single_line: bool) -> None:
        names = [message] if len(means) == 1 else [f"{message} {index}" for index in range(len(means))]
        self._printer.say([f"{name}: {mean:.3f}" for name, mean in zip(names, means, strict=True)], single_line)

    def print_num_model_parameters(self, normalize: ParamNormalize | float | str = ParamNormalize.MILLION) -> None:
        """Print how many numbers the model trains, in thousands, millions, billions or trillions."""
        unit = _unit(normalize)
        self.print(f"Total Trainable Model Parameters: {self.num_model_parameters / unit.value:.3f} {unit.name}")

    def dump_model_parameter_info(self) -> None:
        """Print name, shape, device and dtype of each parameter that is trained."""
        trained = [(name, p) for name, p in self.session.parts.module.named_parameters() if p.requires_grad]
        self.print([f"{name}: shape {tuple(p.shape)}, device {p.device}, dtype {p.dtype}" for name, p in trained])


def _unit(value: Any) -> ParamNormalize:
    if isinstance(value, str) and value.upper() in ParamNormalize.__members__:
        return ParamNormalize[value.upper()]
    try:
        return ParamNormalize(value)
    except ValueError:
        instead = nearest(str(value).upper(), ParamNormalize.__members__)
        raise SpecError.of("normalize", value, "there is no such unit", instead) from None
