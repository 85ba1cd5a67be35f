"""The step of PyTorch itself: what clears the gradients does all that the optimizer's own does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from restoke.spec import Precision
from restoke.steppers import torch_stepper

CPU = torch.device("cpu")


class Own(torch.optim.SGD):
    """Counts when it is asked to clear."""

    asked = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.asked += 1
        super().zero_grad(set_to_none)


def stepper(optimizer: torch.optim.Optimizer) -> Any:
    return torch_stepper(nn.Linear(2, 1), optimizer, Precision(), CPU, None)


def with_gradients() -> list[nn.Parameter]:
    parameters = list(nn.Linear(2, 1).parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


def test_clearing_drops_every_gradient_also_of_groups_that_come_later() -> None:
    first, later = with_gradients(), with_gradients()
    optimizer = torch.optim.SGD(first, lr=0.1)
    clear = stepper(optimizer).clear
    optimizer.add_param_group({"params": later})
    clear()
    assert [parameter.grad for parameter in (*first, *later)] == [None] * 4


def test_an_optimizer_that_clears_in_its_own_way_is_asked() -> None:
    own = Own(with_gradients(), lr=0.1)
    stepper(own).clear()
    assert own.asked == 1
    assert all(parameter.grad is None for parameter in own.param_groups[0]["params"])
    patched, asked = torch.optim.SGD(with_gradients(), lr=0.1), list[bool]()
    patched.zero_grad = lambda set_to_none=True: asked.append(set_to_none)  # type: ignore[method-assign]
    stepper(patched).clear()
    assert asked == [True]
