"""Partial FC in sessions: trained under every strategy that takes shared layers, saved, and gone on with by any world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from restoke import OptimizerSpec, Session
from restoke.distributed import gather_rows, group_of
from restoke.errors import SpecError
from restoke.nn import PartialFC
from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from restoke.table import rows
from restoke.testing.training import trained
from tests import ranks

CLASSES, FEATURES, BATCH = 19, 4, 12
SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01})
ADAMW = OptimizerSpec(torch.optim.AdamW, {"lr": 0.02})
SHARING = [name for name, row in rows().items() if row.usable() and row.shared]
every_row = pytest.mark.parametrize("strategy", SHARING)


class Model(nn.Module):
    """A trunk whose features all ranks' rows come together from, and a head of which each has some classes."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, 5)
        self.head = PartialFC(5, CLASSES, scale=8.0, sample_rate=rate, seed=4)
        self.group = group_of()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(gather_rows(torch.tanh(self.trunk(x)), self.group), gather_rows(y, self.group))  # type: ignore[no-any-return]


def started(strategy: str, rate: float, spec: OptimizerSpec, **axes: Any) -> Session:
    torch.manual_seed(0)
    session = Session(strategy=strategy, device="cpu", **axes)
    torch.manual_seed(0)
    session.prepare(Model(rate), spec)
    return session  # the head follows its optimizer by itself


def go_on(session: Session, first: int, last: int) -> dict[str, Any]:
    for number in range(first, last):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(BATCH, FEATURES, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)
        own = slice(session.world.rank * BATCH // session.world.size, (session.world.rank + 1) * BATCH // session.world.size)
        loss = parallel_cross_entropy(*session.forward(x[own], y[own]))
        session.backward(loss)
        session.step()
    return {name: value for name, value in trained(session).items() if "sampled" not in name}


def whole_run(strategy: str, rate: float, spec: OptimizerSpec, axes: dict[str, Any]) -> dict[str, Any]:
    return go_on(started(strategy, rate, spec, **axes), 0, 6)


def saving(strategy: str, rate: float, spec: OptimizerSpec, folder: str) -> dict[str, Any]:
    session = started(strategy, rate, spec)
    go_on(session, 0, 3)
    session.save(folder)
    return go_on(session, 3, 6)


def loading(strategy: str, rate: float, spec: OptimizerSpec, folder: str) -> dict[str, Any]:
    session = started(strategy, rate, spec)
    with torch.no_grad():
        for p in session.parts.module.parameters():
            p.zero_()
    session.load(folder)
    return go_on(session, 3, 6)


def assert_same(found: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@every_row
@pytest.mark.parametrize("clip", [None, 0.3])
def test_with_all_classes_it_trains_as_one_process_does(strategy: str, clip: float | None) -> None:
    axes = {} if clip is None else {"clip": clip}
    wanted = ranks.run(1, whole_run, "single", 1.0, SGD, axes)[0]
    for rate in (1.0, 0.999):
        for found in ranks.run(2, whole_run, strategy, rate, SGD, axes):
            assert_same(found, wanted, 1e-5)


@every_row
@pytest.mark.parametrize("spec", [SGD, ADAMW], ids=["SGD", "AdamW"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(strategy: str, spec: OptimizerSpec, tmp_path: Path) -> None:
    wanted = ranks.run(2, saving, strategy, 0.4, spec, str(tmp_path))[0]
    for found in ranks.run(2, loading, strategy, 0.4, spec, str(tmp_path)):
        assert_same(found, wanted, 0.0)


@every_row
def test_another_world_goes_on_with_weights_and_state(strategy: str, tmp_path: Path) -> None:
    """Of all classes, so that what it draws does not matter."""
    wanted = ranks.run(2, saving, strategy, 0.999, ADAMW, str(tmp_path))[0]
    for n, name in ((1, "single"), (4, strategy)):
        assert_same(ranks.run(n, loading, name, 0.999, ADAMW, str(tmp_path))[0], wanted, 1e-5)


@pytest.mark.parametrize(
    ("axes", "said"), [({"ema": 0.9}, "is none of a class"), ({"optimizer": "in-backward"}, "backward is over")]
)
def test_axes_that_would_take_sampled_rows_for_one_parameter_are_refused(axes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        started("single", 0.5, SGD, **axes)
    assert started("single", 1.0, SGD, **axes)
