"""The training step: windows of micro-batches, the backward, clipping, and the precision's context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from restoke.configs import ClipGradConfig, ClipGradNormConfig
from restoke.errors import SessionError
from restoke.facades.accelerate.accumulating import Accumulating
from restoke.facades.accelerate.backward import Backward
from restoke.facades.accelerate.clipping import NO_LIMIT, clip, measured
from restoke.facades.accelerate.optimizer import AcceleratedOptimizer
from restoke.facades.accelerate.plugins import AutocastKwargs
from restoke.facades.accelerate.preparing import Preparing
from restoke.facades.accelerate.trained import Trained, trained_of
from restoke.precision import compute_context
from restoke.session import Session
from restoke.table import PRECISIONS


class Training(Preparing):
    """What runs in each micro-batch."""

    session: Session
    _backward: Backward

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss, divided by the length of its window. `kwargs` are those of `Tensor.backward`.

        Raises:
            SessionError: the loss is no tensor, or has no graph.
        """
        if not isinstance(loss, Tensor):
            why = "it has no gradients to be added"
            raise SessionError.of("loss", f"a {type(loss).__name__}", why, "the tensor that the loss function returned")
        self._backward.run(self._micro.divided(loss), kwargs)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """One micro-batch. Within a window, gradients of these models are not reduced, and nothing steps.

        Raises:
            SessionError: one of them was not prepared here.
        """
        return Accumulating(self._micro, [self._of(model) for model in models if model not in self._placed])

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """The gradients of backwards whose forward runs in it are not reduced."""
        trained = trained_of(model)
        if trained is None:
            yield
            return
        trained.parts.set_grad_sync(False)
        try:
            yield
        finally:
            trained.parts.set_grad_sync(True)

    @staticmethod
    @contextmanager
    def trigger_sync_in_backward(model: nn.Module) -> Iterator[None]:
        """Reduce the gradients with the next backward, although the forwards ran in `no_sync`."""
        trained = trained_of(model)
        if trained is not None:
            trained.late = True
        yield

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch ends its window: gradients are reduced, and optimizers step."""
        return self._micro.sync

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._micro.sync = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a full window."""
        return self._micro.plugin.num_steps or 1

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self._micro.resize(value)

    def clip_grad_norm_(self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor | None:
        """Scale the gradients so that their norm over all shards is at most `max_norm`; returns the norm before.

        Within a window nothing is clipped, and the norm is that of what this rank has gathered so far.
        """
        if not self._micro.sync:
            return measured(parameters, norm_type)
        return clip(parameters, _by_norm(max_norm, norm_type), self._held.trained)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clip each element of the gradients; within a window nothing is."""
        if self._micro.sync:
            clip(parameters, ClipGradConfig(clip_value=clip_value), self._held.trained)

    def unscale_gradients(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Divide the gradients by the loss scale now: those of the optimizers given, or of all. Twice is once."""
        for model in self._of_optimizers(optimizer):
            if model.session.scaler is not None and not model.clipped:
                model.clip(NO_LIMIT)

    def _of_optimizers(self, optimizer: Any) -> list[Trained]:
        if optimizer is None:
            return self._held.trained
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        wrappers = [self._wrapper(each) for each in given]
        return [model for wrapper in wrappers if wrapper is not None for model in wrapper.owners]

    @contextmanager
    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Iterator[None]:
        """The precision that was declared, for what is computed outside of the model; off where the handler says so."""
        context: Callable[[], AbstractContextManager[Any]]
        precision = PRECISIONS[self.session.spec.precision].means
        if autocast_handler is None or autocast_handler.enabled:
            context = compute_context(precision, self.device)
        else:
            context = _off(self.device)
        with context():
            yield

    @property
    def scaler(self) -> GradScaler | None:
        """The loss scaler; None where the precision needs none."""
        return None if self.session.scaler is None else self.session.scaler.torch

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether an overflow made any optimizer's last step skip."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    def _of(self, model: nn.Module) -> Trained:
        trained = trained_of(model)
        if trained is None or trained not in self._held.trained:
            name = type(model).__name__
            raise SessionError.of("accumulate", name, "it was not prepared here", "the model that prepare returned")
        return trained

    @property
    def _accelerated(self) -> list[AcceleratedOptimizer]:
        return self._optimizers


@lru_cache(maxsize=64)  # a script clips alike in every step, and reading a setting costs more than a small clipping
def _by_norm(max_norm: float, norm_type: float) -> ClipGradNormConfig:
    return ClipGradNormConfig(max_norm=max_norm, norm_type=float(norm_type))


def _off(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: torch.autocast(device.type, enabled=False)
