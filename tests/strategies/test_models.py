"""Every strategy of several processes trains models as people write them, as one process does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from restoke import OptimizerSpec, Session
from restoke.table import rows
from restoke.testing.training import trained
from tests import ranks
from tests.strategies.models import MODELS, Model

ROWS = [name for name, row in rows().items() if row.usable() and row.processes == "many" and row.package == "restoke"]
STEPS = 4
FAR = 1e-6  # float32, SGD: what the order of a sum may change


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(STEPS)]


def loss_of(output: Tensor, y: Tensor) -> Tensor:
    return ((output - y) ** 2).mean()


def by_session(strategy: str) -> dict[str, dict[str, Any]]:
    """Every model, trained with clipping; the norm of each step beside the weights."""
    return {name: _trained(strategy, model) for name, model in MODELS.items()}


def _trained(strategy: str, model: Model) -> dict[str, Any]:
    session = Session(strategy=strategy, device="cpu", clip=0.5)
    session.prepare(model.made(), OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, model.groups))
    norms = []
    for x, y in batches():
        rank, size = session.world.data_rank, session.world.data_size
        session.backward(loss_of(model.call(session.forward, x[rank::size]), y[rank::size]))
        step = session.step()
        assert step is not None
        assert step.norm is not None
        norms.append(step.norm.item())
    return {"norms": np.array(norms), **trained(session)}


def by_hand(model: Model) -> dict[str, Any]:
    module = model.made()
    named = list(module.named_parameters())
    optimizer = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, model.groups).build(named)
    norms = []
    for x, y in batches():
        loss_of(model.call(module, x), y).backward()  # type: ignore[no-untyped-call]
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
    return {"norms": np.array(norms), **{name: value.detach().double().numpy() for name, value in module.state_dict().items()}}


@pytest.mark.parametrize("strategy", ROWS)
def test_models_train_as_in_one_process(strategy: str) -> None:
    processes = max(rows()[strategy].tried or (2,))
    for rank, found in enumerate(ranks.run(processes, by_session, strategy)):
        for name, model in MODELS.items():
            for key, want in by_hand(model).items():
                far = float(np.abs(found[name][key] - want).max())
                assert far <= FAR, f"{name} under {strategy}, rank {rank}: {key} is {far:.3g} off"
