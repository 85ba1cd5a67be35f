"""Averaged weights: torch's own formula, per shard, in checkpoints of any world size, and in the model for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from restoke import OptimizerSpec, Session
from restoke.checkpoint import open_weights
from restoke.configs import AMPConfig
from restoke.errors import SessionError
from restoke.testing.training import weights
from tests import ranks

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
DECAY = 0.9


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 1))
    model[3].requires_grad_(False)
    return model


def session_of(**axes: Any) -> Session:
    session = Session(ema=DECAY, **axes)
    session.prepare(net(), SGD)
    return session


def step(session: Session, i: int) -> None:
    rows = torch.linspace(-1, 1, 32).reshape(8, 4) * (1 + i % 3)
    loss = session.forward(rows).float().square().mean()
    session.backward(loss)
    session.step()


def by_torch(session: Session, steps: int) -> AveragedModel:
    averaged = AveragedModel(session.parts.module, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for i in range(steps):
        step(session, i)
        averaged.update_parameters(session.parts.module)
    return averaged


def test_it_is_torchs_average_to_the_last_bit() -> None:
    session = session_of()
    averaged = by_torch(session, 5)
    trained = weights(session.parts.module)
    with session.averaged():
        inside = dict(session.parts.module.named_parameters())
        assert all(torch.equal(inside[name], p) for name, p in averaged.module.named_parameters())
        assert any((inside[name].detach().double().numpy() != trained[name]).any() for name in inside)
    assert all((value == trained[name]).all() for name, value in weights(session.parts.module).items())


def test_before_the_first_step_the_average_is_the_weight() -> None:
    session = session_of()
    before = weights(session.parts.module)
    with session.averaged():
        assert all((value == before[name]).all() for name, value in weights(session.parts.module).items())


def test_frozen_weights_are_not_kept_twice_and_join_when_they_are_trained() -> None:
    session = session_of()
    step(session, 0)
    captured = session.parts.state.capture()
    assert session.averages is not None
    session.averages.capture(captured)
    assert {name for name in captured.chunks if name.startswith("ema/")} == {
        f"ema/{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")
    }
    session.parts.module[3].requires_grad_(True)
    step(session, 1)
    session.averages.capture(captured)
    assert "ema/3.weight" in captured.chunks


def test_low_precisions_are_averaged_in_float32() -> None:
    session = Session(ema=0.999, precision="bf16-true")
    session.prepare(net(), OptimizerSpec(torch.optim.SGD, {"lr": 0.0}))
    step(session, 0)
    with torch.no_grad():
        session.parts.module[0].bias.zero_()
        want = session.parts.module[0].bias.float()
    assert session.averages is not None
    average = session.averages._averages["0.bias"]
    first = average.clone()
    step(session, 1)
    assert average.dtype == torch.float32
    assert torch.allclose(average, first + 0.001 * (want - first), rtol=1e-5)
    assert not torch.equal(average, first)


def test_a_skipped_step_is_not_averaged() -> None:
    session = session_of(precision="fp16", settings=[AMPConfig(init_scale=64.0)])
    for i in range(3):
        step(session, i)  # average and weight are apart by now
    assert session.averages is not None
    before = {name: value.clone() for name, value in session.averages._averages.items()}
    session.backward(session.forward(torch.ones(2, 4)).mean() * float("inf"))
    session.step()
    assert session.skipped == 1
    assert all(torch.equal(value, before[name]) for name, value in session.averages._averages.items())


def test_nothing_but_evaluation_is_done_within(tmp_path: Path) -> None:
    session = session_of()
    step(session, 0)
    session.save(tmp_path)
    loss = session.forward(torch.ones(2, 4)).sum()
    step_bound_before = session.step
    with session.averaged():
        for verb, call in {
            "backward": lambda: session.backward(loss),
            "step": step_bound_before,
            "save": lambda: session.save(tmp_path),
            "load": lambda: session.load(tmp_path),
            "averaged": lambda: session.averaged().__enter__(),
        }.items():
            with pytest.raises(SessionError, match=f"averaged='{verb}'"):
                call()
    step(session, 1)


def test_an_error_within_puts_the_weights_back() -> None:
    session = session_of()
    for i in range(2):
        step(session, i)
    before = weights(session.parts.module)
    with pytest.raises(ZeroDivisionError), session.averaged():
        raise ZeroDivisionError
    assert all((value == before[name]).all() for name, value in weights(session.parts.module).items())
    step(session, 2)


def test_without_averages_there_are_none_to_use_and_steps_are_as_they_were() -> None:
    session = Session()
    session.prepare(net(), SGD)
    with pytest.raises(SessionError, match="ema=0.999"), session.averaged():
        pass
    assert session.parts.stepper.step.__module__ == "restoke.steppers"


def test_the_averages_go_on_after_a_restart_and_their_lack_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, without = session_of(), session_of(), Session()
    without.prepare(net(), SGD)
    for i in range(3):
        step(one, i)
    one.save(tmp_path / "with")
    two.load(tmp_path / "with")
    for session in (one, two):
        step(session, 3)
    with one.averaged(), two.averaged():
        a, b = weights(one.parts.module), weights(two.parts.module)
    assert all((a[name] == b[name]).all() for name in a)
    assert capsys.readouterr().err == ""
    without.load(tmp_path / "with")
    assert "this run keeps none" in capsys.readouterr().err
    without.save(tmp_path / "without")
    two.load(tmp_path / "without")
    assert "no averaged weights" in capsys.readouterr().err


SHARDED = ["ddp", "zero1", "zero2", "fsdp"]


def on_ranks(folder: str, strategies: list[str]) -> dict[str, Any]:
    """The averages of each strategy as evaluation sees them, and what the rank holds of them."""
    found: dict[str, Any] = {}
    for strategy in strategies:
        session = session_of(strategy=strategy)
        for i in range(3):
            step(session, i)
        x = torch.linspace(-1, 1, 8).reshape(2, 4)
        session.parts.module.eval()
        with torch.no_grad():
            trained = session.forward(x)  # may leave parameters gathered
            with session.averaged():
                inside = session.forward(x)
            again = session.forward(x)
        session.parts.module.train()
        assert torch.equal(trained, again)
        assert session.averages is not None
        found[strategy] = inside.numpy(), sum(value.numel() for value in session.averages._averages.values())
        session.save(f"{folder}/{strategy}")
    return found


def test_shards_average_their_own_and_any_world_size_goes_on(tmp_path: Path) -> None:
    whole = session_of()
    averaged = by_torch(whole, 3)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)

    held = sum(p.numel() for p in whole.parts.module.parameters() if p.requires_grad)
    whole.parts.module.eval()
    with torch.no_grad(), whole.averaged():  # its buffers are those of the run
        want = whole.forward(x)
    for rank in ranks.run(2, on_ranks, str(tmp_path), SHARDED):
        for strategy, (inside, numel) in rank.items():
            assert torch.allclose(torch.from_numpy(inside), want, atol=1e-6), strategy
            assert numel == held if strategy in ("ddp", "zero1") else numel < 0.7 * held
    for strategy in SHARDED:
        exported = open_weights(tmp_path / strategy, ema=True)
        one = session_of()
        one.load(tmp_path / strategy)
        with one.averaged():
            for name, p in one.parts.module.named_parameters():
                assert torch.allclose(p, dict(averaged.module.named_parameters())[name], atol=1e-6), strategy
                assert torch.equal(exported.read(f"model/{name}"), p) or not p.requires_grad
