"""The scheduler that `prepare` returns: it steps once with each optimizer step, and is skipped with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.optimizer import AcceleratedOptimizer


@final
class AcceleratedScheduler:
    """Stands for the script's own scheduler.

    `times` is how often one call steps it: once, or once per process for a script that was written for that.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Sequence[AcceleratedOptimizer],
        micro: Micro,
        *,
        step_with_optimizer: bool = True,
        times: int = 1,
    ) -> None:
        self.scheduler, self.optimizers = scheduler, list(optimizers)
        self.step_with_optimizer = step_with_optimizer
        self._micro, self._times = micro, times

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step it, unless the optimizer did not step now: within a window, or because of an overflow."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self._micro.sync or any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        last = getattr(self.scheduler, "total_steps", None)
        for _ in range(self._times):
            if last is None or self._times == 1 or self.scheduler.last_epoch < last:
                self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[float]:
        return list(self.scheduler.get_last_lr())

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)
