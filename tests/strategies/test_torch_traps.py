"""What torch's FSDP2 warns of or cannot do, and restoke mends or refuses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from restoke import OptimizerSpec, Session
from restoke.errors import SpecError
from restoke.testing.training import trained
from tests import ranks
from tests.strategies.models import Deep
from tests.strategies.test_models import FAR, batches, loss_of
from tests.strategies.test_shards import every_row, one_step, started


class Views(Deep):
    """Blocks and a model whose outputs are views, as those of a Linear on sequences are."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.unsqueeze(1)).squeeze(1)


def in_place(strategy: str) -> dict[str, Any]:
    torch.manual_seed(3)
    session = started(strategy, Views())
    for i in range(2):
        x, y = batches()[i]
        rank, size = session.world.data_rank, session.world.data_size
        out = session.forward(x[rank::size])
        out += 1.0
        out.mul_(2.0)
        session.backward(loss_of(out, y[rank::size]))
        session.step()
    return trained(session)


@every_row
def test_what_the_model_returns_may_be_changed_in_place(strategy: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        want, got = ranks.run(1, in_place, "single")[0], ranks.run(2, in_place, strategy)[0]
    assert max(float(np.abs(got[name] - value).max()) for name, value in want.items()) <= FAR


def fused() -> list[str]:
    said = []
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        session = Session(strategy="fsdp", device="cpu", optimizer="fused")
        try:
            session.prepare(Deep(), OptimizerSpec(kind, {"lr": 0.1}))
            one_step(session, 0)
            session.step()
            said.append("stepped")
        except SpecError as error:
            said.append(str(error))
    return said


def test_a_way_to_step_that_torch_has_not_for_shards_is_refused() -> None:
    for sgd, adam in ranks.run(2, fused):
        assert sgd.startswith("optimizer='fused SGD': torch cannot step shards by its fused SGD")
        assert "Instead: optimizer=foreach" in sgd
        assert adam == "stepped"
