"""Tensor parallelism: what a plan may say, what it trains like, and that its checkpoints are everybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from restoke import OptimizerSpec, Session, TensorConfig
from restoke.errors import SpecError
from restoke.passes.tensor_plan import find_layers
from restoke.spec import Spec
from restoke.testing.examples import EXAMPLES, PLAN
from restoke.testing.training import trained
from tests import ranks

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
EXAMPLE = EXAMPLES["blocks"]
FAR = 1e-6  # float32, SGD
SEQUENCE = {**PLAN, "layers.*.before": "sequence", "layers.*.between": "sequence", "norm": "sequence"}


def spec(plan: dict[str, str]) -> Spec:
    return Spec(strategy="fsdp", tensor=2, settings=[TensorConfig(plan=plan)])


def refusal(model: nn.Module, plan: dict[str, str]) -> str:
    with pytest.raises(SpecError) as refused:
        find_layers(model, spec(plan))
    return str(refused.value)


class Two(nn.Module):
    def __init__(self, inner: int = 6) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, inner), nn.Linear(inner, 4)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (Two(), {"*.upp": "columns"}, "TensorConfig.plan='*.upp': no layer has such a name"),
        (Two(), {"up": "columns", "u*": "rows"}, "a layer has one style"),
        (Two(5), {"up": "columns", "down": "rows"}, "TensorConfig.plan.up='columns': out_features=5 cannot be divided by 2"),
        (Two(), {"up": "columns"}, "its outputs stay in shares, and no rows layer near it takes them"),
        (nn.Sequential(nn.Conv1d(2, 2, 1)), {"0": "columns"}, "a Conv1d cannot be sharded. Instead: a Linear or an Embedding"),
        (nn.Sequential(nn.Linear(2, 2)), {"0": "sequence"}, "a Linear is not the same on a share"),
        (Tied(), {"embed": "vocabulary"}, "it is tied to embed, whose weight is cut along dimension 0; here it would be whole"),
        (nn.MultiheadAttention(4, 2), {"out_proj": "rows"}, "uses the weights of its layers without calling them"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_obeyed_is_refused(model: nn.Module, plan: dict[str, str], said: str) -> None:
    found = refusal(model, plan)
    assert said in found
    assert "Instead: " in found


def test_tied_weights_that_are_cut_alike_are_taken() -> None:
    layers = find_layers(Tied(), spec({"embed": "vocabulary", "head": "vocabulary"}))
    assert [layer.name for layer in layers] == ["embed", "head"]


def started(plan: dict[str, str] | None, strategy: str = "fsdp") -> Session:
    axes: dict[str, Any] = {"tensor": 2, "settings": [TensorConfig(plan=plan)]} if plan else {}
    session = Session(strategy=strategy, device="cpu", clip=0.5, **axes)
    session.prepare(EXAMPLE.build(), SGD)
    return session


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(11, (8, 5), generator=generator) for _ in range(4)]
    return [(text[:, :-1], text[:, 1:]) for text in texts]


def train(session: Session, some: list[tuple[Tensor, Tensor]]) -> list[float]:
    rank, size = session.world.data_rank, session.world.data_size
    norms = []
    for x, y in some:
        session.backward(EXAMPLE.loss(session.forward(x[rank::size]), y[rank::size]))
        step = session.step()
        assert step is not None
        assert step.norm is not None
        norms.append(step.norm.item())
    return norms


def by_plan(plan: dict[str, str] | None, strategy: str, folder: str) -> dict[str, Any]:
    session = started(plan, strategy)
    norms = train(session, batches()[:2])
    session.save(folder, "half")
    norms += train(session, batches()[2:])
    return {"norms": np.array(norms), **trained(session)}


def resumed(plan: dict[str, str] | None, strategy: str, folder: str) -> dict[str, Any]:
    session = started(plan, strategy)
    session.load(folder)
    norms = train(session, batches()[2:])
    return {"norms": np.array([0.0, 0.0, *norms]), **trained(session)}


def near(got: dict[str, Any], want: dict[str, Any]) -> None:
    for name, value in want.items():
        shown = value * (got[name] != 0) if name == "norms" else value
        assert float(np.abs(got[name] - shown).max()) <= FAR, name


def test_any_plan_trains_as_one_process_does_and_its_checkpoints_are_everybodys(tmp_path: Path) -> None:
    alone = ranks.run(1, by_plan, None, "single", str(tmp_path / "single"))[0]
    for name, plan in {"plain": dict(PLAN), "sequence": SEQUENCE}.items():
        for rank in ranks.run(4, by_plan, plan, "fsdp", str(tmp_path / name)):
            near(rank, alone)
        near(ranks.run(1, resumed, None, "single", str(tmp_path / name))[0], alone)
        near(ranks.run(2, resumed, plan, "fsdp", str(tmp_path / name))[0], alone)
        near(ranks.run(2, resumed, None, "ddp", str(tmp_path / name))[0], alone)
    near(ranks.run(4, resumed, dict(PLAN), "fsdp", str(tmp_path / "single"))[0], alone)


def unfinished() -> list[str]:
    """Plans that only the forward can show to be wrong."""
    said = []
    for plan in ({**SEQUENCE, "head": "columns"}, {name: style for name, style in SEQUENCE.items() if name != "embed"}):
        with pytest.raises(SpecError) as refused:
            _first_forward(plan)
        said.append(str(refused.value))
    return said


def _first_forward(plan: dict[str, str]) -> None:
    started(plan).forward(batches()[0][0])


def test_shares_that_nobody_takes_up_again_are_refused() -> None:
    for said in ranks.run(2, unfinished):
        assert all(text.startswith("TensorConfig.plan.") and "Instead: " in text for text in said)


class Scaled(nn.Module):
    """The heads of each rank are scaled by a parameter of which every rank has the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Any:
        shares = self.up(self.embed(x)).unflatten(-1, (-1, 4)) * self.scale
        return self.head(functional.gelu(self.down(shares.flatten(2))))


def partial() -> str:
    torch.manual_seed(0)
    session = Session(strategy="fsdp", device="cpu", tensor=2, settings=[TensorConfig(plan={"up": "columns", "down": "rows"})])
    session.prepare(Scaled(), SGD)
    x, y = batches()[0]
    session.backward(EXAMPLE.loss(session.forward(x), y))
    with pytest.raises(SpecError) as refused:
        session.step()
    return str(refused.value)


def test_a_parameter_whose_gradients_differ_between_the_ranks_is_refused_in_the_first_step() -> None:
    for said in ranks.run(2, partial):
        assert "without scale" in said
        assert "the ranks that share layers have different gradients of it" in said
        assert said.endswith("Instead: a norm of your own for it, with the style heads.")
