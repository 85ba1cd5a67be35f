"""Linear layers in float8, emulated: near float32, under the same names, in every strategy; refused by name otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from restoke import OptimizerSpec, Session
from restoke.errors import SpecError
from restoke.facts import Facts, installed
from restoke.said import _SAID
from restoke.spec import Spec
from restoke.table import problems, rows, usable
from restoke.testing.contract import LOW
from tests import ranks

needs_torchao = pytest.mark.skipif(not installed("torchao"), reason="torchao is not installed")
SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
STEPS = 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.tanh(self.up(x)))
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 16)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def started(precision: str = "fp8", **axes: Any) -> Session:
    session = Session(precision=precision, **axes)
    session.prepare(Net(), SGD)
    return session


def train(session: Session, steps: int = STEPS) -> dict[str, Any]:
    """Whole weights after so many steps, each rank on its own rows."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(16, 5, generator=generator), torch.randint(4, (16,), generator=generator)
        x, y = (part[session.world.data_rank :: session.world.data_size] for part in (x, y))
        with session.forward_context():
            loss = nn.functional.cross_entropy(session.forward(x), y)
        session.backward(loss)
        session.step()
    session.parts.reshard()
    named = session.parts.module.named_parameters()
    return {name: session.parts.layout.local(p.detach()).float().numpy() for name, p in named}


def far(one: dict[str, Any], two: dict[str, Any]) -> float:
    assert list(one) == list(two)
    return max(float(abs(value - two[name]).max()) for name, value in one.items())


@needs_torchao
def test_it_trains_as_float32_within_its_band() -> None:
    apart = far(train(started()), train(started("fp32")))
    assert 1e-4 < apart < LOW["fp8"]


@needs_torchao
def test_names_and_parameters_stay_and_what_was_converted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _SAID.clear()
    model = Net()
    before = dict(model.named_parameters())
    session = Session(precision="fp8")
    session.prepare(model, SGD)
    after = dict(session.parts.module.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is p for name, p in before.items())
    converted = [name for name, m in model.named_modules() if type(m).__name__ == "Float8Linear"]
    assert converted == ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"]
    said = capsys.readouterr().err
    assert "4 linear layers multiply in float8; 2 do not (first: its sizes are 5 and 16; head: its sizes are 16 and 4)" in said


@needs_torchao
def test_checkpoints_go_to_other_precisions_and_back(tmp_path: Path) -> None:
    one, two, three = started(), started("bf16"), started()
    train(one, 3)
    one.save(tmp_path / "one")
    two.load(tmp_path / "one")
    two.save(tmp_path / "two")
    three.load(tmp_path / "two")
    assert far(train(one, 3), train(three, 3)) == 0


@needs_torchao
@pytest.mark.parametrize("remat", ["blocks", "selective"])
def test_recomputing_changes_no_bit(remat: str) -> None:
    assert far(train(started(remat=remat), 4), train(started(), 4)) == 0


@needs_torchao
def test_what_cannot_be_converted_is_refused() -> None:
    hooked = nn.Sequential(nn.Linear(16, 16))
    hooked[0].register_forward_hook(lambda *_: None)
    for model, says in (
        (nn.Sequential(nn.Linear(8, 8)), "its sizes are 8 and 8"),
        (nn.Linear(16, 16), "it is the model itself"),
        (hooked, "hooks are registered"),
        (nn.Conv1d(16, 16, 1), "it has none"),
    ):
        with pytest.raises(SpecError, match=says):
            Session(precision="fp8").prepare(model, SGD)


def test_without_torchao_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restoke.rules.installed", lambda module: module != "torchao")
    assert "pip install 'restoke[torchao]'" in str(problems(Spec(precision="fp8"), Facts()))


def test_layers_that_are_sharded_are_refused() -> None:
    assert "sharded do not multiply" in str(problems(Spec(precision="fp8", tensor=2), Facts(processes=2, launched=True)))


def on_ranks(strategies: list[str]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    found = {}
    for name in strategies:
        session = started(strategy=name)
        kinds = [name for name, m in session.parts.module.named_modules() if "Float8Linear" in type(m).__name__]
        found[name] = train(session), kinds
    return found


@needs_torchao
def test_it_goes_with_every_strategy() -> None:
    names = [name for name in usable() if rows()[name].processes == "many" and "fp8" in rows()[name].precisions]
    names = [name for name in names if not problems(Spec(strategy=name, precision="fp8"), Facts(processes=2, launched=True))]
    want = train(started("fp32"))
    answers = ranks.run(2, on_ranks, names, timeout=110)
    assert "ddp" in names
    for name in names:
        parts = [answer[name][0] for answer in answers]
        for key, whole in want.items():
            got = [part[key] for part in parts]
            value = got[0] if got[0].shape == whole.shape else np.concatenate(got)
            assert abs(value - whole).max() < LOW["fp8"], (name, key)
        assert len(answers[0][name][1]) == 4, name
