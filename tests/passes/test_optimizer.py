"""Fused, by foreach, in 8 bits, within the backward: each as its own plain loop, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from restoke import OptimizerSpec, Session
from restoke.errors import SessionError, SpecError
from restoke.facts import Facts, installed
from restoke.spec import Spec
from restoke.table import problems
from tests import ranks

needs_torchao = pytest.mark.skipif(not installed("torchao"), reason="torchao is not installed")


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def started(optimizer: OptimizerSpec, how: str = "given", width: int = 8, scheduler: Any = None, **axes: Any) -> Session:
    session = Session(optimizer=how, **axes)
    session.prepare(net(width), optimizer, scheduler)
    return session


def loss_of(session: Session, i: int = 0) -> Tensor:
    x = torch.linspace(-1, 1, 32).reshape(8, 4) * (1 + i)
    loss: Tensor = session.forward(x).square().mean()
    return loss


def train(session: Session, steps: int = 4, first: int = 0) -> dict[str, Tensor]:
    for i in range(first, first + steps):
        session.backward(loss_of(session, i))
        session.step()
    return {name: p.detach().clone() for name, p in session.parts.module.named_parameters()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def refused(optimizer: OptimizerSpec, how: str) -> str:
    with pytest.raises(SpecError) as caught:
        started(optimizer, how)
    problem = caught.value.problems[0]
    assert (problem.axis, problem.got) == ("optimizer", how)
    return str(problem)


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_the_keyword_reaches_the_class(how: str) -> None:
    session = started(OptimizerSpec(AdamW, {"lr": 0.1}, [{"params": "*.bias", "lr": 0.2}]), how)
    assert [group[how] for group in session.parts.optimizer.param_groups] == [True, True]
    by_hand = started(OptimizerSpec(AdamW, {"lr": 0.1, how: True}, [{"params": "*.bias", "lr": 0.2}]))
    same(train(session), train(by_hand))


class Plain(SGD):
    """Takes no such keyword."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)


def test_a_keyword_that_cannot_be_obeyed_is_refused() -> None:
    assert "Plain does not take fused=True" in refused(OptimizerSpec(Plain, {"lr": 0.1}), "fused")
    assert "{'fused': False}" in refused(OptimizerSpec(SGD, {"lr": 0.1, "fused": False}), "fused")
    assert "{'foreach': True}" in refused(OptimizerSpec(SGD, {"lr": 0.1, "foreach": True}), "fused")
    assert "{'foreach': False}" in refused(OptimizerSpec(SGD, {"lr": 0.1}, [{"params": "*", "foreach": False}]), "foreach")
    assert "refuses it on cpu" in refused(OptimizerSpec(SGD, {"lr": 0.1, "differentiable": True}), "fused")
    started(OptimizerSpec(SGD, {"lr": 0.1, "fused": True}), "fused")


@pytest.mark.parametrize("clip", [None, "value:0.01"])
@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSpec(AdamW, {"lr": 0.1, "amsgrad": True}, [{"params": "*.bias", "weight_decay": 0.0}]),
        OptimizerSpec(SGD, {"lr": 0.1, "momentum": 0.9}),
        OptimizerSpec(torch.optim.Adafactor, {"lr": 0.1}),
    ],
    ids=lambda given: given.cls.__name__ if isinstance(given, OptimizerSpec) else str(given),
)
def test_stepping_in_the_backward_changes_no_bit(optimizer: OptimizerSpec, clip: str | None) -> None:
    def schedule(built: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(built, 1, gamma=0.5)

    one, two = (started(optimizer, how, scheduler=schedule, clip=clip) for how in ("in-backward", "given"))
    same(train(one), train(two))
    assert (one.steps, one.schedulers[0].get_last_lr()) == (two.steps, two.schedulers[0].get_last_lr())


def most_gradients(how: str) -> int:
    session, most = started(OptimizerSpec(AdamW, {"lr": 0.1}), how), 0
    parameters = list(session.parts.module.parameters())

    def count(_: Tensor) -> None:
        nonlocal most
        most = max(most, sum(p.grad is not None for p in parameters))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(count)
    session.backward(loss_of(session))
    return most + sum(p.grad is not None for p in parameters)


def test_gradients_are_gone_when_the_next_comes() -> None:
    assert most_gradients("given") == 2 * 6
    assert most_gradients("in-backward") == 0, "each is gone before hooks that were registered later"


def test_a_checkpoint_is_the_same_as_without(tmp_path: Path) -> None:
    adam = OptimizerSpec(Adam, {"lr": 0.1})
    one, two = started(adam, "in-backward"), started(adam)
    train(one)
    one.save(tmp_path)
    two.load(tmp_path)
    same(train(one, first=4), train(two, first=4))


def test_gradients_of_other_backwards_wait_for_the_step() -> None:
    """As those that a generator's loss sends through the discriminator, and that are dropped."""
    one, two = (started(OptimizerSpec(AdamW, {"lr": 0.1}), how) for how in ("in-backward", "given"))
    for session in (one, two):
        loss_of(session, 3).backward()
        session.zero_grads()
        loss_of(session, 2).backward()
    same(train(one), train(two))


def test_two_backwards_in_one_window_are_refused() -> None:
    session = started(OptimizerSpec(AdamW, {"lr": 0.1}), "in-backward")
    session.backward(loss_of(session))
    with pytest.raises(SessionError, match="one backward of the sum"):
        session.backward(loss_of(session))
    session.step()
    train(session)


class Together(torch.optim.Optimizer):
    """Divides by the norm of all gradients."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in trained])
        for p in trained:
            p.sub_(p.grad / norm)


class Counted(Together):
    """Counts its steps in the group."""

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1


def test_an_optimizer_that_looks_at_all_parameters_cannot_step_in_the_backward() -> None:
    assert "depends on others" in refused(OptimizerSpec(Together), "in-backward")
    assert "keeps count for all" in refused(OptimizerSpec(Counted), "in-backward")


def why(facts: Facts | None = None, **axes: Any) -> str:
    return "\n".join(str(problem) for problem in problems(Spec(**axes), facts or Facts()))


def test_where_the_backward_cannot_step_is_said() -> None:
    assert "micro-batches would have to wait" in why(optimizer="in-backward", accumulate=4)
    assert "norm of all gradients" in why(optimizer="in-backward", clip=1.0)
    assert "overflowed" in why(optimizer="in-backward", precision="fp16")
    assert not why(optimizer="in-backward", clip="value:1", precision="bf16")
    assert "Instead: strategy=single" in why(Facts(launched=True, processes=2), optimizer="in-backward", strategy="ddp")


def test_without_torchao_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restoke.rules_passes.installed", lambda _: False)
    assert "pip install 'restoke[torchao]'" in why(optimizer="8bit")


@needs_torchao
@pytest.mark.filterwarnings("ignore")  # torch's own, when it first compiles, which torchao's step does
def test_eight_bits_take_an_eighth_and_go_on_to_the_last_bit(tmp_path: Path) -> None:
    adam = OptimizerSpec(AdamW, {"lr": 0.01}, [{"params": "*.bias", "weight_decay": 0.0}])

    def schedule(built: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(built, 2, gamma=0.5)

    one, two = (started(adam, "8bit", width=64, scheduler=schedule) for _ in range(2))
    train(one, 2)
    wide = one.parts.module[2].weight
    state = one.parts.optimizer.state[wide]["exp_avg"]
    assert (type(state).__name__, state.codes.dtype) == ("OptimState8bit", torch.uint8)
    one.save(tmp_path)
    assert "optimizer/2.weight/exp_avg:codes" in one.parts.state.capture().chunks
    two.load(tmp_path)
    assert [float(group["lr"]) for group in two.parts.optimizer.param_groups] == pytest.approx([0.005, 0.005])
    same(train(one, 2, 2), train(two, 2, 2))


def eight_bits_on_ranks() -> list[Any]:
    session = started(OptimizerSpec(AdamW, {"lr": 0.01}), "8bit", width=64, strategy="ddp")
    x = torch.linspace(-1, 1, 32).reshape(8, 4)[session.world.data_rank :: session.world.data_size]
    for _ in range(2):
        session.backward(session.forward(x).square().mean())
        session.step()
    return [p.detach().numpy() for p in session.parts.module.parameters()]


@needs_torchao
def test_eight_bits_are_the_same_on_every_rank() -> None:
    one, two = ranks.run(2, eight_bits_on_ranks, timeout=110)
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    assert any((a != p.detach().numpy()).any() for a, p in zip(one, net(64).parameters(), strict=True))


@needs_torchao
def test_what_has_no_eight_bits_is_refused() -> None:
    assert "no SGD of 8 bits" in refused(OptimizerSpec(SGD, {"lr": 0.1}), "8bit")
    assert "does not take maximize" in refused(OptimizerSpec(AdamW, {"lr": 0.1, "maximize": True}), "8bit")
