"""Compiled in place: names, signatures and checkpoints are as without, and so is the training."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from restoke import OptimizerSpec, Session
from restoke.errors import SpecError
from tests import ranks
from tests.passes.test_remat import Stack

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 1e-3})
real_compile = torch.compile
pytestmark = [  # what torch warns itself of while it compiles
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that torch does, but for the writing of code."""
    monkeypatch.setattr(torch, "compile", _quickly)
    torch._dynamo.reset()
    counters.clear()


def _quickly(function: Any) -> Any:
    return real_compile(function, backend="aot_eager_decomp_partition")


def still(model: nn.Module) -> nn.Module:
    """Without dropout, whose random numbers are others where it is compiled."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def started(**axes: Any) -> Session:
    session = Session(**axes)
    session.prepare(still(Stack(4)), SGD)
    return session


def train(session: Session, steps: int = 2, seed: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    for _ in range(steps):
        session.backward(session.forward(torch.randn(4, 5, 8)).square().mean())
        session.step()
    return {name: value.clone() for name, value in session.parts.module.state_dict().items()}


def near(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert list(one) == list(two)
    for name, value in one.items():
        assert torch.allclose(value.float(), two[name].float(), rtol=1e-4, atol=1e-5), name


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("remat", ["none", "blocks", "selective"])
@pytest.mark.parametrize("what", ["blocks", "model"])
def test_it_trains_as_without(what: str, remat: str) -> None:
    near(train(started(compile=what, remat=remat)), train(started()))
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    assert not counters["graph_break"]


@pytest.mark.usefixtures("quick")
def test_blocks_of_a_kind_are_compiled_together() -> None:
    train(started(compile="blocks"))
    assert counters["stats"]["unique_graphs"] == 2, "once for the first, whose input needs no gradient, once for all others"


def test_code_is_made_for_a_cpu() -> None:
    torch._dynamo.reset()

    def session(**axes: Any) -> Session:
        made = Session(**axes)
        torch.manual_seed(0)
        made.prepare(nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh())), SGD)
        return made

    counters.clear()
    near(train(session(compile="model"), 1), train(session(), 1))
    assert counters["inductor"], "the code was not made by inductor"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", ["blocks", "model"])
def test_a_checkpoint_saved_compiled_loads_uncompiled_and_back(what: str, tmp_path: Path) -> None:
    one, two, three = started(compile=what), started(), started(compile=what)
    train(one)
    assert list(one.parts.module.state_dict()) == list(Stack(4).state_dict())
    one.save(tmp_path / "one")
    two.load(tmp_path / "one")
    near(train(two, seed=2), train(one, seed=2))
    two.save(tmp_path / "two")
    three.load(tmp_path / "two")
    near(train(three, seed=3), train(two, seed=3))


@pytest.mark.usefixtures("quick")
def test_types_and_signatures_stay_and_hooks_run_outside() -> None:
    session, seen = started(compile="blocks"), []
    layer = session.parts.module.layers[1]
    assert [type(m) for m in session.parts.module.modules()] == [type(m) for m in Stack(4).modules()]
    assert inspect.signature(layer.forward) == inspect.signature(Stack().layers[1].forward)
    layer.register_forward_pre_hook(lambda *_: seen.append(torch.compiler.is_compiling()))
    session.forward(torch.randn(4, 5, 8))
    assert seen == [False]


@pytest.mark.usefixtures("quick")
def test_a_deep_copy_runs_itself() -> None:
    session = started(compile="blocks", remat="blocks")
    x = torch.randn(4, 5, 8)
    session.forward(x)
    twin = copy.deepcopy(session.parts.module).eval()
    before = twin(x)
    with torch.no_grad():
        for p in session.parts.module.parameters():
            p.zero_()
    assert torch.equal(twin(x), before)


def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(model: nn.Module, what: str) -> str:
        with pytest.raises(SpecError) as caught:
            Session(compile=what).prepare(model, SGD)
        problem = caught.value.problems[0]
        assert (problem.axis, problem.got) == ("compile", what)
        return str(problem)

    assert "compile=model" in refused(nn.Linear(8, 8), "blocks")
    assert "compiled before" in refused(torch.compile(Stack()), "model")  # type: ignore[arg-type]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "there is no no-such-compiler" in refused(Stack(), "model")


COMBINED = [("blocks", "blocks"), ("model", "none")]


def under_ddp() -> list[tuple[dict[str, Any], int]]:
    torch.compile, found = _quickly, []  # type: ignore[assignment]
    try:
        for what, remat in COMBINED:
            torch._dynamo.reset()
            counters.clear()
            trained = train(started(compile=what, remat=remat, strategy="ddp"))
            found.append(({name: value.numpy() for name, value in trained.items()}, counters["stats"]["unique_graphs"]))
    finally:
        torch.compile = real_compile
    return found


def test_it_goes_with_ddp() -> None:
    want = train(started())
    for found in ranks.run(2, under_ddp, timeout=110):
        for combined, (trained, graphs) in zip(COMBINED, found, strict=True):
            assert graphs > 0, combined
            near({name: torch.from_numpy(value) for name, value in trained.items()}, want)
