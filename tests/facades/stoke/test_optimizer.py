"""Optimizers and schedulers as scripts declare them: classes and keywords in plain mappings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from restoke import StokeScheduler
from restoke.errors import SpecError
from tests.facades.stoke.samples import SGD, batches, micro_step, net, stoke


# issue 20 of Stoke: a scheduler that the step steps
def test_a_declared_scheduler_is_built_on_the_optimizer_and_steps_with_it() -> None:
    schedule = StokeScheduler(scheduler=torch.optim.lr_scheduler.StepLR, scheduler_kwargs={"step_size": 2, "gamma": 0.1})
    it = stoke(grad_accum_steps=2, scheduler=schedule)
    rates = []
    for x, y in batches(8):
        micro_step(it, x, y)
        rates.append(it.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001])
    assert isinstance(it.scheduler, torch.optim.lr_scheduler.StepLR)
    assert stoke().scheduler is None


def test_a_scheduler_built_by_hand_steers_the_optimizer() -> None:
    it = stoke()
    scheduler = torch.optim.lr_scheduler.LambdaLR(it.optimizer, lambda epoch: 0.5**epoch)
    micro_step(it, *batches(1)[0])
    scheduler.step()
    assert it.optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}, "its step needs metrics, which an optimizer step does not"),
        ({"scheduler": torch.optim.lr_scheduler.StepLR}, "scheduler_kwargs={}: StepLR refuses them"),
        ({"scheduler": torch.optim.lr_scheduler.StepLR, "kwargs": {}}, "scheduler.kwargs={}: there is no such key"),
        ({"scheduler": 3}, "scheduler=3: it is not a class of schedulers"),
        ({"scheduler_kwargs": {}}, "scheduler.scheduler=None: the class is missing"),
        ({"scheduler": torch.optim.lr_scheduler.StepLR, "scheduler_kwargs": 3}, "scheduler_kwargs=3: it is not a mapping"),
        (torch.optim.lr_scheduler.StepLR, "scheduler='type': it is no StokeScheduler"),
    ],
)
def test_a_scheduler_that_cannot_step_with_the_optimizer_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        stoke(scheduler=given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.optim.SGD, "optimizer='type': it is no StokeOptimizer. Instead: StokeOptimizer"),
        (torch.optim.SGD(net().parameters()), "optimizer='SGD': it is built already"),
        ({"optimizer": nn.Linear}, "it is not a class of optimizers"),
        ({"optimizer": 3}, "optimizer=3: it is not a class of optimizers"),
        ({"optimizer": torch.optim.SGD, "optimizer_kwarg": {}}, "did you mean 'optimizer_kwargs'"),
        ({"optimizer_kwargs": {}}, "optimizer.optimizer=None: the class is missing"),
        ({"optimizer": torch.optim.SGD, "optimizer_kwargs": [1]}, "optimizer_kwargs=.*it is not a mapping"),
        ({"optimizer": torch.optim.SGD, "optimizer_kwargs": {"learning": 1}}, "SGD refuses them"),
        ({"optimizer": torch.optim.SGD, "groups": [{"params": "conv*"}]}, "no parameter that is left has such a name"),
    ],
)
def test_an_optimizer_that_cannot_be_built_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        stoke(optimizer=given)


def test_parameter_groups_are_named_by_pattern() -> None:
    groups = [{"params": "*.bias", "weight_decay": 0.5}, {"params": ["2.*"], "lr": 0.01}]
    it = stoke(optimizer={**SGD, "groups": groups})
    names = {id(p): name for name, p in it.model_access.named_parameters()}
    found = [([names[id(p)] for p in g["params"]], g["lr"], g["weight_decay"]) for g in it.optimizer.param_groups]
    assert found == [(["0.bias", "2.bias"], 0.1, 0.5), (["2.weight"], 0.01, 0), (["0.weight"], 0.1, 0)]
    assert {type(it.optimizer)} == {torch.optim.SGD}


class Free:
    """A scheduler of the user's own, that takes whatever it is given."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.steps = 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.steps += 1


def test_whatever_builds_an_optimizer_or_a_scheduler_will_do() -> None:
    def build(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr)

    it = stoke(optimizer={"optimizer": build, "optimizer_kwargs": {"lr": 0.5}}, scheduler={"scheduler": Free})
    micro_step(it, *batches(1)[0])
    assert isinstance(it.optimizer, torch.optim.Adam)
    assert it.scheduler.steps == 1
