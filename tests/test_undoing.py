"""Optimizers that a script built are undone in place: the same object trains on, under every strategy, with its state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from restoke import Session
from restoke.errors import SpecError
from restoke.undoing import undo
from tests import ranks
from tests.facades.accelerate.close import close
from tests.strategies.test_models import ROWS


def trained(strategy: str | None, used: bool) -> list[Any]:
    """Groups in another order than the model's; with `used`, a step was taken before. Without a strategy, bare PyTorch."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    named = dict(model.named_parameters())
    groups = [{"params": [named["2.weight"], named["0.weight"]], "lr": 0.1}, {"params": [named["0.bias"], named["2.bias"]]}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    x = torch.ones(3, 4)
    if used:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    session = None if strategy is None else Session(strategy=strategy)
    if session is not None:
        session.prepare(model, undo(optimizer, model))
        assert session.parts.optimizer is optimizer
    for _ in range(3):
        if session is None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            session.backward(session.forward(x).sum())
            session.step()
        schedule.step()
    state: Any = model.state_dict() if session is None else session.full_state_dict()
    return [*(state[name].flatten().tolist() for name in named), [group["lr"] for group in optimizer.param_groups]]


@pytest.mark.parametrize("used", [False, True])
def test_the_same_object_trains_on_and_its_scheduler_steers_it(used: bool) -> None:
    assert close(trained("single", used), trained(None, used), within=0)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("strategy", ROWS)
def test_its_state_is_laid_out_as_the_strategy_has_it(strategy: str, used: bool) -> None:
    bare = trained(None, used)
    assert all(close(mine, bare) for mine in ranks.run(2, trained, strategy, used))


def test_foreign_parameters_and_steps_that_need_something_are_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(SpecError, match="2 of its parameters are none of the model's"):
        undo(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), model)
    with pytest.raises(SpecError, match="closure"):
        undo(torch.optim.LBFGS(model.parameters()), model)


def test_what_it_was_not_built_as_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(SpecError, match="build it so in the script"):
        Session(optimizer="foreach").prepare(model, undo(torch.optim.SGD(model.parameters(), lr=0.1), model))
