"""Loops as people write them, under every strategy: two models in one process, two forwards for one loss, a loss at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from restoke import OptimizerSpec, Session
from restoke.table import rows
from restoke.testing.training import trained
from tests import ranks
from tests.strategies.models import Deep, Unlike
from tests.strategies.test_models import FAR, ROWS, batches, loss_of

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})


def mine(session: Session, i: int) -> list[Any]:
    return [part[session.world.data_rank :: session.world.data_size] for part in batches()[i]]


def gan(strategy: str) -> dict[str, Any]:
    """Two models and two optimizers; the second's gradients reach the first through both."""
    torch.manual_seed(3)
    maker, judge = Session(strategy=strategy, device="cpu"), Session(strategy=strategy, device="cpu")
    maker.prepare(Deep(), SGD)
    judge.prepare(torch.nn.Linear(2, 1), SGD)
    for i in range(3):
        noise, real = mine(maker, i)
        fake = maker.forward(noise)
        judged = torch.cat([judge.forward(real), judge.forward(fake.detach())])
        judge.backward(bce(judged, torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])))
        judge.step()
        maker.backward(bce(judge.forward(fake), torch.ones(len(real), 1)))
        judge.zero_grads()
        maker.step()
    return trained(maker) | {f"judge.{name}": value for name, value in trained(judge).items()}


def two_forwards(strategy: str) -> dict[str, Any]:
    """One loss of two forwards of the same model."""
    torch.manual_seed(3)
    session = Session(strategy=strategy, device="cpu")
    session.prepare(Deep(), SGD)
    for i in range(3):
        x, y = mine(session, i)
        session.backward(loss_of(session.forward(x) + session.forward(-x), y))
        session.step()
    return trained(session)


def two_backwards(strategy: str) -> dict[str, Any]:
    """A loss at a time, each with a forward of its own, before one step."""
    torch.manual_seed(3)
    session = Session(strategy=strategy, device="cpu")
    session.prepare(Unlike(), SGD)
    for i in range(3):
        x, y = mine(session, i)
        session.backward(loss_of(session.forward(x), y))
        session.backward(loss_of(session.forward(2 * x), y))
        session.step()
    return trained(session)


@pytest.mark.parametrize("loop", [gan, two_forwards, two_backwards], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("strategy", ROWS)
def test_loops_train_as_in_one_process(strategy: str, loop: Any) -> None:
    want = ranks.run(1, loop, "single")[0]
    for rank, got in enumerate(ranks.run(max(rows()[strategy].tried or (2,)), loop, strategy)):
        for name, value in want.items():
            far = float(np.abs(got[name] - value).max())
            assert far <= FAR, f"rank {rank}: {name} is {far:.3g} off"
