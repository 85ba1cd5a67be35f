"""Layers that ranks share, saved by one world and restored by another: training goes on, and every tensor is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from restoke import Session, checkpoint
from restoke.configs.rendezvous import Rendezvous
from restoke.distributed import Group, group_of
from restoke.ranks import Ranks
from restoke.testing.training import trained
from restoke.whole import gather_whole
from restoke.world import World
from tests import ranks
from tests.nn.shared_model import (
    ADAM,
    CLASSES,
    SHARING,
    Model,
    assert_same,
    batches,
    every_row,
    loss_of,
    possible,
)


def saving(strategy: str, folder: str, steps: int, accumulate: int) -> dict[str, Any]:
    session, group = started(strategy, accumulate)
    for x, y in batches()[:steps]:
        session.backward(loss_of(session, group, True, x, y))
        session.step()
    session.save(folder)
    return going_on(session, group, steps)


def started(strategy: str, accumulate: int) -> tuple[Session, Group]:
    session = Session(strategy=strategy, device="cpu", accumulate=accumulate, ema=0.9)
    group = group_of(session.world.size)
    session.prepare(Model(group, together=True), ADAM)
    return session, group


def going_on(session: Session, group: Group, steps: int) -> dict[str, Any]:
    for x, y in batches()[steps:]:
        session.backward(loss_of(session, group, True, x, y))
        session.step()
    found = trained(session)
    with session.averaged():
        return found | {f"ema/{name}": value.numpy() for name, value in _whole(session).items()}


def _whole(session: Session) -> dict[str, Tensor]:
    return gather_whole(session.parts.state.capture(), session.world)


def loading(strategy: str, folder: str, steps: int, accumulate: int) -> dict[str, Any]:
    session, group = started(strategy, accumulate)
    with torch.no_grad():
        for p in session.parts.module.parameters():
            p.zero_()
    session.load(folder)
    return going_on(session, group, steps)


@every_row
@pytest.mark.parametrize(("accumulate", "steps"), [(1, 4), (4, 2)])
def test_any_world_goes_on_from_what_four_ranks_saved(strategy: str, accumulate: int, steps: int, tmp_path: Path) -> None:
    wanted = ranks.run(4, saving, strategy, str(tmp_path), steps, accumulate)[0]
    for n in (n for n in (4, 3, 2) if possible(strategy, n)):
        assert_same(ranks.run(n, loading, strategy, str(tmp_path), steps, accumulate)[0], wanted)
    assert_same(ranks.run(1, loading, "single", str(tmp_path), steps, accumulate)[0], wanted)


def copied(strategy: str, source: str, target: str) -> None:
    session, _ = started(strategy, accumulate=1)
    session.load(source)
    session.save(target)


def everything(folder: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint but the generators' own, whole."""
    saved = checkpoint.read(folder, None, World.join("cpu", Ranks(), Rendezvous(), many=False))
    return {key: saved.read(key).numpy() for key in saved.keys() if key.split("/")[0] in ("model", "optimizer", "ema")}  # noqa: SIM118


@pytest.mark.parametrize("strategy", [name for name in SHARING if possible(name, 1) and possible(name, 5)])
def test_ten_classes_saved_by_four_ranks_are_the_same_at_any_world(strategy: str, tmp_path: Path) -> None:
    ranks.run(4, saving, strategy, str(tmp_path / "4"), 4, 1)
    wanted = everything(tmp_path / "4")
    assert wanted["model/head.weight"].shape == (CLASSES, 5)
    assert {"optimizer/head.weight/exp_avg", "ema/head.weight"} < wanted.keys()
    for n in (1, 2, 3, 5):
        ranks.run(n, copied, strategy, str(tmp_path / "4"), str(tmp_path / str(n)))
        found = everything(tmp_path / str(n))
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{key} at {n}")
