"""The verbs of a session, one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from restoke import OptimizerSpec, Session, Spec
from restoke.configs import AMPConfig
from restoke.errors import SessionError, SpecError
from restoke.said import _SAID
from restoke.spec import ENVIRONMENT

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.5})


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(4, 2)


def one_loss(session: Session, factor: float = 1.0) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    loss: torch.Tensor = session.forward(x).square().mean() * factor
    return loss


def prepared(**axes: Any) -> Session:
    session = Session(**axes)
    session.prepare(net(), SGD)
    return session


@pytest.mark.parametrize("verb", ["forward", "divide", "backward", "step", "parts"])
def test_before_prepare_every_verb_says_what_is_missing(verb: str) -> None:
    with pytest.raises(SessionError, match="prepare was not called"):
        getattr(Session(), verb)()


def test_a_session_has_one_model() -> None:
    session = prepared()
    with pytest.raises(SessionError, match="a second Session"):
        session.prepare(net(), SGD)


def test_a_spec_and_its_fields_at_once_are_refused() -> None:
    with pytest.raises(SpecError, match="one of the two"):
        Session(Spec(), precision="bf16")
    with pytest.raises(SpecError, match="did you mean 'precision'"):
        Session(precison="bf16")


def test_what_cannot_run_is_refused_before_anything_is_touched() -> None:
    with pytest.raises(SpecError) as caught:
        Session(accumulate=0, precision="tf32", device="cpu")
    assert {problem.axis for problem in caught.value.problems} == {"accumulate", "precision"}


def test_a_step_says_its_norm_and_within_a_window_nothing() -> None:
    session = prepared(accumulate=2, clip=0.1)
    session.backward(one_loss(session))
    assert session.step() is None
    session.backward(one_loss(session))
    step = session.step()
    assert step is not None
    assert step.norm is not None
    model = net()
    model(torch.linspace(-1, 1, 12).reshape(3, 4)).square().mean().backward()
    assert torch.allclose(step.norm, nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    assert not step.skipped
    assert all(p.grad is None for p in session.parts.module.parameters())


def test_an_overflow_skips_the_step_and_its_schedule_and_lowers_the_scale() -> None:
    session = Session(precision="fp16", settings=[AMPConfig(init_scale=64.0)])
    session.prepare(net(), SGD, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    before = {name: p.clone() for name, p in session.parts.module.named_parameters()}
    session.backward(one_loss(session, float("inf")))
    step = session.step()
    assert step is not None
    assert step.skipped
    assert (session.steps, session.skipped) == (0, 1)
    assert all(torch.equal(p, before[name]) for name, p in session.parts.module.named_parameters())
    assert session.scaler is not None
    assert session.scaler.torch.get_scale() == 32.0
    assert session.schedulers[0].get_last_lr() == [0.5]
    session.backward(one_loss(session))
    step = session.step()
    assert step is not None
    assert not step.skipped
    assert (session.steps, session.skipped) == (1, 1)
    assert session.schedulers[0].get_last_lr() == [0.25]


def test_fp16_on_the_cpu_computes_in_fp16() -> None:
    session = prepared(precision="fp16", device="cpu")
    assert session.forward(torch.ones(1, 4)).dtype == torch.float16
    assert {p.dtype for p in session.parts.module.parameters()} == {torch.float32}


def test_bf16_true_converts_the_model_and_gives_back_float32() -> None:
    session = prepared(precision="bf16-true")
    assert session.forward(torch.ones(1, 4)).dtype == torch.float32
    assert {p.dtype for p in session.parts.module.parameters()} == {torch.bfloat16}
    assert session.scaler is None


def test_zero_grads_begins_a_new_window() -> None:
    session = prepared(accumulate=2)
    session.backward(one_loss(session))
    session.step()
    session.zero_grads()
    session.backward(one_loss(session))
    assert session.step() is None, "the half window was dropped"


def test_two_sessions_share_a_scaler_where_one_backward_serves_both() -> None:
    """The scale must not move between the two steps, though the first is due to grow it."""
    grow = AMPConfig(init_scale=2.0, growth_interval=1)
    one = Session(precision="fp16", settings=[grow])
    one.prepare(net(), SGD)
    two = Session(precision="fp16", settings=[grow], scaler=one.scaler)
    two.prepare(net(), SGD)
    one.backward(one_loss(one) + one_loss(two))
    one.step()
    assert one.scaler is not None
    assert one.scaler.torch.get_scale() == 2.0, "looking does not move it"
    two.step()
    for a, b in zip(one.parts.module.parameters(), two.parts.module.parameters(), strict=True):
        assert torch.equal(a, b)
    assert one.scaler.torch.get_scale() == 4.0


def test_a_shared_scale_follows_one_session_where_the_other_rests() -> None:
    config = AMPConfig(init_scale=64.0)
    one = Session(precision="fp16", accumulate=2, settings=[config])
    two = Session(precision="fp16", accumulate=2, settings=[config], scaler=one.scaler)
    one.prepare(net(), SGD)
    two.prepare(net(), SGD)
    for _ in range(2):
        for _ in range(2):
            one.backward(one_loss(one, float("inf")))
            one.step()
    one.backward(one_loss(one))
    assert one.scaler is not None
    assert (one.skipped, one.scaler.torch.get_scale()) == (2, 16.0)


def test_a_scaler_where_nothing_is_scaled_is_refused() -> None:
    with pytest.raises(SpecError, match="bf16 scales no loss"):
        Session(precision="bf16", scaler=prepared(precision="fp16").scaler)


def test_the_seed_makes_initialisation_and_dropout_repeat() -> None:
    def numbers(seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        session = Session(seed=seed)
        initial = torch.rand(3)
        session.prepare(net(), SGD)
        return initial, torch.rand(3)

    first, again, other = numbers(5), numbers(5), numbers(6)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1]), "dropout has a stream of its own"


def test_without_a_seed_the_generators_are_left_alone() -> None:
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    Session()
    assert torch.equal(torch.rand(3), want)


def test_what_was_declared_outside_wins_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _SAID.clear()
    monkeypatch.setenv(ENVIRONMENT, '{"precision": "bf16", "accumulate": 2}')
    for _ in range(2):
        session = Session(precision="fp16")
        assert (session.spec.precision, session.spec.accumulate) == ("bf16", 2)
    assert capsys.readouterr().err == "restoke: declared outside the script: precision=bf16 (the script: fp16)\n"


def test_parameter_groups_are_made_by_name_pattern() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    groups = ({"params": ["*.bias", "1.*"], "weight_decay": 0.0}, {"params": "2.*", "lr": 0.1})
    session = Session()
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": 0.5, "weight_decay": 0.3}, groups))
    made = session.parts.optimizer.param_groups
    assert [(len(g["params"]), g["lr"], g["weight_decay"]) for g in made] == [(4, 0.5, 0.0), (1, 0.1, 0.3), (1, 0.5, 0.3)]


@pytest.mark.parametrize(
    ("optimizer", "axis"),
    [
        (OptimizerSpec(torch.optim.SGD, {"lr": 0.1}, ({"params": "nothing.*"},)), "groups.params"),
        (OptimizerSpec(torch.optim.SGD, {"learning_rate": 0.1}), "optimizer_kwargs"),
    ],
)
def test_an_optimizer_that_cannot_be_built_is_refused(optimizer: OptimizerSpec, axis: str) -> None:
    with pytest.raises(SpecError) as caught:
        Session().prepare(net(), optimizer)
    assert caught.value.problems[0].axis == axis


def test_patterns_of_a_group_may_be_any_iterable_of_names_and_no_parameters() -> None:
    names = OptimizerSpec(torch.optim.SGD, {"lr": 0.1}, ({"params": (name for name in ["*.bias"])},))
    for _ in range(2):
        assert [len(group["params"]) for group in names.build(nn.Sequential(nn.Linear(2, 2)).named_parameters()).param_groups]
    for params in (nn.Linear(2, 2).parameters(), list(nn.Linear(2, 2).parameters()), nn.Parameter(torch.ones(())), None):
        with pytest.raises(SpecError, match=r"groups.params='\w+': parameters are named in a group"):
            OptimizerSpec(torch.optim.SGD, {"lr": 0.1}, ({"params": params, "lr": 1.0},))


def test_registered_things_have_names_of_their_own() -> None:
    session = prepared()
    session.register("ema", nn.Linear(1, 1))
    with pytest.raises(SessionError, match="another name"):
        session.register("ema", nn.Linear(1, 1))


def test_flush_without_a_begun_window_does_nothing() -> None:
    session = prepared(accumulate=3)
    assert session.flush() is None
    assert session.steps == 0


def test_a_sessions_loader_ends_its_windows_and_is_saved_with_its_place(tmp_path: Path) -> None:
    def loading() -> tuple[Session, Any]:
        session = prepared(accumulate=2, seed=3)
        return session, session.loader(TensorDataset(torch.arange(20.0).reshape(5, 4)), shuffle=True)

    def micro_step(session: Session, x: torch.Tensor) -> torch.Tensor:
        session.backward(session.forward(x).square().mean())
        session.step()
        return x

    straight, loader = loading()
    seen = []
    for i, (x,) in enumerate(loader):
        seen.append(micro_step(straight, x))
        if i == 2:
            straight.save(tmp_path)
    assert straight.steps == 3, "windows of two, two and one"
    resumed, loader = loading()
    resumed.load(tmp_path)
    assert all(map(torch.equal, seen[3:], [micro_step(resumed, x) for (x,) in loader]))
    for a, b in zip(straight.parts.module.parameters(), resumed.parts.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_that_are_unfrozen_later_are_clipped_too() -> None:
    model = net()
    model.requires_grad_(False)
    model.bias.requires_grad_(True)
    session = Session(clip=0.001, accumulate=2)
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": 1.0}))
    model.requires_grad_(True)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        session.backward(one_loss(session, 100.0))
        session.step()
    moved = torch.cat([(p - old).flatten() for p, old in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.001, rel=1e-3)
