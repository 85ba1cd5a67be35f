"""Local SGD: gradients stay each rank's own, and every few steps the weights are averaged."""

from __future__ import annotations

from typing import Any, Self, final

import torch
from torch import nn

from restoke.errors import SpecError
from restoke.facades.accelerate import collectives
from restoke.facades.accelerate.face import Face
from restoke.facades.accelerate.trained import trained_of


@final
class LocalSGD:
    """A context in which the model's gradients are not reduced; call `step` after each optimizer step.

    Raises:
        SpecError: the model is sharded, so no rank has weights of its own.
    """

    def __init__(self, accelerator: Face, model: nn.Module, local_sgd_steps: int, enabled: bool = True) -> None:
        self.enabled = enabled and accelerator.num_processes > 1
        self.accelerator, self.model, self.local_sgd_steps = accelerator, model, local_sgd_steps
        self.num_steps = 0
        trained = trained_of(model)
        if self.enabled and (trained is None or not trained.parts.own_grads):
            why = "its ranks have no whole weights of their own"
            raise SpecError.of("LocalSGD", accelerator.session.spec.strategy, why, "strategy=ddp")
        self._quiet: Any = None

    def __enter__(self) -> Self:
        if self.enabled:
            self._quiet = self.accelerator.no_sync(self.model)
            self._quiet.__enter__()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self.enabled:
            self._average()
            self._quiet.__exit__(kind, value, trace)

    def step(self) -> None:
        """Count a step, and average the weights where it is time."""
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        self.accelerator.wait_for_everyone()
        for parameter in self.accelerator.unwrap_model(self.model).parameters():
            parameter.copy_(collectives.reduce(parameter.detach(), "mean", 1.0, self.accelerator.world))
