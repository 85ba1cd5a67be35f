"""What any strategy saved, any other restores, at any world size and with the optimizer's state, and trains on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from restoke import OptimizerSpec, Session, checkpoint
from restoke.table import rows
from restoke.testing.cases import tried
from restoke.testing.training import trained
from restoke.world import World
from tests import ranks
from tests.strategies.models import MODELS
from tests.strategies.test_models import FAR, loss_of

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
ADAM = OptimizerSpec(torch.optim.AdamW, {"lr": 0.01})
FULL = os.environ.get("RESTOKE_TEST_FULL") == "1"  # else a quarter: each row from each other
BEFORE, AFTER = 2, 2
SIZE = 12  # samples in a global batch: 1 to 4 ranks have equal shares
ALONE = World(0, 1, 0, 1, torch.device("cpu"))
KINDS = {"sgd": ("tied blocks", SGD), "adam": ("adapters", ADAM)}


def _sizes(name: str) -> tuple[int, ...]:
    """World sizes from 1 to 4 at which the row runs."""
    row = rows()[name]
    if row.processes == "one":
        return (1,)
    least = tried(row)[0]
    return tuple(size for size in (1, 2, 3, 4) if size % least == 0)


PLACES = [(name, size) for name, row in rows().items() if row.usable() and row.package == "restoke" for size in _sizes(name)]


def batches() -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    count = BEFORE + AFTER
    return [(torch.randn(SIZE, 4, generator=generator), torch.randn(SIZE, 2, generator=generator)) for _ in range(count)]


def started(strategy: str, kind: str) -> Session:
    name, optimizer = KINDS[kind]
    session = Session(strategy=strategy, device="cpu")
    session.prepare(MODELS[name].made(), optimizer)
    return session


def train(session: Session, some: list[Any]) -> None:
    rank, size = session.world.data_rank, session.world.data_size
    for x, y in some:
        session.backward(loss_of(session.forward(x[rank::size]), y[rank::size]))
        session.step()


def save(strategy: str, folder: str) -> dict[str, Any]:
    """Trains, saves, and trains on; what it has in the end, by kind."""
    ends = {}
    for kind in KINDS:
        session = started(strategy, kind)
        train(session, batches()[:BEFORE])
        session.save(f"{folder}/{kind}", "saved")
        train(session, batches()[BEFORE:])
        ends[kind] = trained(session)
    return ends


def restore(strategy: str, chosen: list[tuple[str, str]], again: str) -> dict[tuple[str, str], Any]:
    """From each folder and kind: saves what it restored once more, and trains on."""
    ends: dict[tuple[str, str], Any] = {}
    for folder, kind in chosen:
        session = started(strategy, kind)
        session.load(f"{folder}/{kind}")
        session.save(f"{again}/{Path(folder).name}/{kind}", "again")
        train(session, batches()[BEFORE:])
        ends[folder, kind] = trained(session)
    return ends


def straight() -> dict[str, Any]:
    ends = {}
    for kind in KINDS:
        session = started("single", kind)
        train(session, batches())
        ends[kind] = trained(session)
    return ends


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A folder for each place, and what its own run came to."""
    root = tmp_path_factory.mktemp("pairs")
    folders = {str(root / f"{name}-{size}"): (name, size) for name, size in PLACES}
    return {folder: ranks.run(size, save, name, folder)[0] for folder, (name, size) in folders.items()}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Any]:
    return ranks.run(1, straight)[0]


@pytest.mark.parametrize(("strategy", "size"), PLACES, ids=[f"{name}-on-{size}" for name, size in PLACES])
def test_restores_what_any_saved(
    strategy: str, size: int, saved: dict[str, dict[str, Any]], uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    place, kinds = PLACES.index((strategy, size)), list(KINDS)
    pairs = [
        (folder, kind) for i, folder in enumerate(saved) for j, kind in enumerate(kinds) if FULL or (i + j + place) % 4 == 0
    ]
    for (folder, kind), end in ranks.run(size, restore, strategy, pairs, str(tmp_path))[0].items():
        what = f"{Path(folder).name} ({kind}), restored by {strategy} on {size}"
        _same_state(Path(folder) / kind, tmp_path / Path(folder).name / kind, what)
        if kind == "sgd":
            _near(end, uninterrupted[kind], f"{what}, against a run that never stopped")
        else:  # Adam divides by what may be tiny: against the run that saved alone
            _near(end, saved[folder][kind], f"{what}, against the run that saved", 10 * FAR)


def _same_state(one: Path, other: Path, what: str) -> None:
    """Each tensor to the last bit, whatever its pieces."""
    first, second = checkpoint.read(one, None, ALONE), checkpoint.read(other, None, ALONE)
    keys = {key for key in first.keys() if key.startswith(("model/", "optimizer/"))}  # noqa: SIM118
    assert keys == {key for key in second.keys() if key.startswith(("model/", "optimizer/"))}, what  # noqa: SIM118
    assert any(key.startswith("optimizer/") for key in keys)
    for key in keys:
        assert torch.equal(first.read(key), second.read(key)), f"{what}: {key}"


def _near(got: dict[str, Any], want: dict[str, Any], what: str, bound: float = FAR) -> None:
    for name, wanted in want.items():
        far = float(np.abs(got[name] - wanted).max())
        assert far <= bound, f"{what}: {name} is {far:.3g} off"
