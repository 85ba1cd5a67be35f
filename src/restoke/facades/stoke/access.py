"""What a script reaches through a Stoke object: the model, the optimizer, the scaler, this rank, and the counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from restoke.facades.stoke.checkpoints import Progress
from restoke.facades.stoke.losses import Loss, Losses
from restoke.facades.stoke.status import Echoes
from restoke.world import World


class Access(Echoes):
    """Properties that lead to what was made of the declaration. None is a collective."""

    _losses: Losses
    _progress: Progress
    _backward_is_due: bool  # whether this micro-batch has not seen `backward` yet

    @property
    def model_access(self) -> nn.Module:
        """The model that was given, without what it was wrapped in."""
        return self.session.parts.module

    @property
    def loss_access(self) -> Loss | list[Loss]:
        """The loss function, or the list of several."""
        return self._losses.functions[0] if self._losses.single else self._losses.functions

    @property
    def optimizer(self) -> Optimizer:
        return self.session.parts.optimizer

    @property
    def scheduler(self) -> Any:
        """The scheduler that was declared; None where none was."""
        return next(iter(self.session.schedulers), None)

    @property
    def scaler(self) -> GradScaler | None:
        """The loss scaler; None where the precision needs none."""
        return None if self.session.scaler is None else self.session.scaler.torch

    @property
    def fp16_state_dict(self) -> dict[str, Any] | None:
        return None if self.scaler is None else self.scaler.state_dict()

    @property
    def world(self) -> World:
        return self.session.world

    @property
    def device(self) -> torch.device:
        return self.session.world.device

    @property
    def world_size(self) -> int:
        return self.session.world.size

    @property
    def rank(self) -> int | str:
        """This process's rank; in a run of one process, "gpu" or "cpu"."""
        alone = "gpu" if self.status.gpu else "cpu"
        return alone if self.status.distributed is None else self.session.world.rank

    @property
    def backward_steps(self) -> int:
        """Calls of `backward`."""
        return self._progress.backward_steps

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps taken; those that an overflow skipped do not count."""
        return self.session.steps

    @property
    def grad_accum_counter(self) -> int:
        """Micro-batches of the current window that `backward` has seen."""
        return self.session.windows.done + (not self._backward_is_due)

    @property
    def num_model_parameters(self) -> int:
        """How many numbers the model trains, over all shards."""
        return sum(p.numel() for p in self.session.parts.module.parameters() if p.requires_grad)
