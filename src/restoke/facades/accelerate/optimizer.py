"""The optimizer that `prepare` returns: it steps and clears at the end of a window, and never within one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.optim import Optimizer

from restoke.errors import SessionError
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.trained import Trained


@final
class AcceleratedOptimizer(Optimizer):
    """Stands for the script's own optimizer, which stays the same object (`optimizer`), and steps its parameters.

    `owners` are the prepared models whose parameters it has. One that has a model for itself alone is stepped by the model's
    strategy; else (`free`) it steps when all its models say so.
    """

    def __init__(self, optimizer: Optimizer, micro: Micro, *, free: bool) -> None:
        # not that of Optimizer: all state is the own optimizer's
        self.optimizer, self.free = optimizer, free
        self.owners: list[Trained] = []
        self._micro, self._skipped, self._checked = micro, False, False

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.optimizer.defaults = value

    @property
    def step_was_skipped(self) -> bool:
        """Whether an overflow of the loss scale made the last step skip."""
        return self._skipped

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step at the end of a window; within one nothing is done, not even the closure is called.

        Raises:
            SessionError: there are several processes, and some parameters are none of a prepared model's.
        """
        if not self._micro.sync:
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._checked:
            self._check()
        went = True
        for model in self.owners:
            went = model.step(id(self)) and went
        self._skipped = not went
        if self.free and went:
            self.optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients at the end of a window, not within it: nor before the backward of its last micro-batch."""
        if not self._micro.sync or self._micro.keeps():
            return
        if self.free or not set_to_none or not self.owners:
            self.optimizer.zero_grad(set_to_none)
        else:
            self.owners[0].parts.stepper.clear()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._checked = False
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def train(self) -> None:
        """For optimizers that are told, such as schedule-free ones."""
        self._tell("train")

    def eval(self) -> None:
        """For optimizers that are told, such as schedule-free ones."""
        self._tell("eval")

    def _tell(self, mode: str) -> None:
        told = getattr(self.optimizer, mode, None)
        if callable(told):
            told()

    def _check(self) -> None:
        self._checked = True
        world = next((model.session.world for model in self.owners), None)
        known = {id(p) for model in self.owners for p in model.parts.module.parameters()}
        loose = sum(id(p) not in known for group in self.param_groups for p in group["params"])
        if loose and (world is None or world.size > 1) and self._micro.several:
            why = f"{loose} of its parameters are none of a prepared model's: every rank would train its own"
            raise SessionError.of("optimizer", type(self.optimizer).__name__, why, "prepare the models that have them, too")

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "_micro", "owners"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return repr(self.optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy belongs to no model."""
        vars(self).update(state, free=True, owners=[], _micro=Micro.alone(), _skipped=False, _checked=False)
