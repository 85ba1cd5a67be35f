"""An optimizer without a step, for a model that has none, several, or a part of one: the strategy's turn without the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.errors import SpecError


@final
class Shell(Optimizer):
    """All parameters of a model in one group. The optimizers that step them keep the state; it passes through here when it
    is laid out, saved and loaded."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """The strategy reduces, unscales and agrees around this."""

    def pull(self, optimizers: Iterable[Optimizer]) -> None:
        """Show the state that they have for the model's parameters."""
        self.state.clear()
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        for optimizer in optimizers:
            self.state.update({p: state for p, state in optimizer.state.items() if id(p) in mine})

    def push(self, optimizers: Iterable[Optimizer]) -> None:
        """Give the state that is here to those that step the parameters."""
        for optimizer in optimizers:
            mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
            optimizer.state.update({p: state for p, state in self.state.items() if id(p) in mine})
        self.state.clear()


def repoint(optimizer: Optimizer, now: Mapping[int, nn.Parameter]) -> None:
    """Let the optimizer hold, in place of each parameter, what `now` has for its identity."""
    for group in optimizer.param_groups:
        group["params"] = [now.get(id(p), p) for p in group["params"]]
    kept: dict[Tensor, Any] = {p: state for p, state in optimizer.state.items() if id(p) not in now}
    optimizer.state.clear()
    optimizer.state.update(kept)


def refuse_steered(shell: Optimizer, strategy: str) -> None:
    """Raises SpecError where the strategy works on the optimizer itself, so that it must have a model for itself."""
    if shell._optimizer_step_pre_hooks:
        why = f"{strategy} keeps each rank's part of an optimizer's state, of one optimizer for one model"
        instead = "prepare(model, optimizer) in one call, one of each, or strategy=ddp"
        raise SpecError.of("strategy", strategy, why, instead)
