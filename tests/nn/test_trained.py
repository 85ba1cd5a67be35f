"""Layers that ranks share, trained in sessions: as one process trains the whole, and saved for any other world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke import OptimizerSpec, Session, TensorConfig, checkpoint
from restoke.configs import AMPConfig
from restoke.configs.rendezvous import Rendezvous
from restoke.distributed import Group, Shard, copy, gather, gather_rows, group_of
from restoke.errors import SpecError
from restoke.facts import Facts
from restoke.nn import register_shard
from restoke.nn.trained import refuse_shared
from restoke.ranks import Ranks
from restoke.rows import Row
from restoke.spec import Spec
from restoke.table import problems, rows
from restoke.testing.training import trained
from restoke.whole import gather_whole
from restoke.world import World
from tests import ranks

STEPS, ROWS_EACH, FEATURES, CLASSES = 8, 12, 6, 10
SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.2, "momentum": 0.9})
ADAM = OptimizerSpec(torch.optim.AdamW, {"lr": 0.05})
SHARING = [name for name, row in rows().items() if row.usable() and row.shared]
every_row = pytest.mark.parametrize("strategy", SHARING)


def possible(strategy: str, n: int, **axes: Any) -> bool:
    """Whether the strategy can run in so many processes at all."""
    return not problems(
        Spec(strategy=strategy, device="cpu", **axes), Facts(processes=n, launched=True, devices=("cpu",), per_node=n)
    )


class Head(nn.Module):
    """A linear layer whose rows are cut, written as a user would."""

    def __init__(self, group: Group, classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.shard = Shard(group, 0, classes)
        self.weight = nn.Parameter(self.shard.of(torch.randn(classes, 5, generator=generator)).clone())
        self.bias = nn.Parameter(self.shard.of(torch.randn(classes, generator=generator)).clone())
        register_shard(self, "weight", self.shard)
        register_shard(self, "bias", self.shard)

    def forward(self, x: Tensor) -> Tensor:
        return gather(F.linear(copy(x, self.shard.group), self.weight, self.bias), -1, self.shard.group, self.shard.size)


class Model(nn.Module):
    def __init__(self, group: Group, together: bool, classes: int = CLASSES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.group, self.together = group, together
        self.trunk = nn.Linear(FEATURES, 5)
        with torch.no_grad():
            for p in self.trunk.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.head = Head(group, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.trunk(x))
        return self.head(gather_rows(features, self.group) if self.together else features)


def batches(classes: int = CLASSES) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS_EACH, FEATURES)
    return [
        (torch.randn(shape, generator=generator), torch.randint(classes, (ROWS_EACH,), generator=generator))
        for _ in range(STEPS)
    ]


def alone(clip: float | None = None, accumulate: int = 1) -> dict[str, Any]:
    """One process, the whole layer, the whole batch."""
    model = Model(group_of(1), together=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for i, (x, y) in enumerate(batches()):
        (F.cross_entropy(model(x), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def share_of(x: Tensor, session: Session, group: Group, together: bool) -> Tensor:
    """Each rank its rows; or each group its rows, alike on its ranks."""
    world = session.world
    if together:
        return x[world.rank * ROWS_EACH // world.size : (world.rank + 1) * ROWS_EACH // world.size]
    index, groups = world.rank // group.size, world.size // group.size
    return x[index * ROWS_EACH // groups : (index + 1) * ROWS_EACH // groups]


def loss_of(session: Session, group: Group, together: bool, x: Tensor, y: Tensor) -> Tensor:
    own_x, own_y = (share_of(each, session, group, together) for each in (x, y))
    targets = gather_rows(own_y, group) if together else own_y
    return F.cross_entropy(session.forward(own_x), targets)


def in_session(strategy: str, size: int | None, together: bool, **axes: Any) -> dict[str, Any]:
    session = Session(strategy=strategy, device="cpu", **axes)
    group = group_of(size)
    session.prepare(Model(group, together), SGD)
    for x, y in batches():
        session.backward(loss_of(session, group, together, x, y))
        session.step()
    return trained(session)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@every_row
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(("n", "size", "together"), [(2, 2, True), (4, 2, True), (4, 2, False), (3, 3, True)])
def test_training_equals_one_process_with_the_whole_layer(
    strategy: str, clip: float | None, n: int, size: int, together: bool
) -> None:
    if not possible(strategy, n):
        pytest.skip(f"not in {n} processes")
    axes = {} if clip is None else {"clip": clip}
    found = ranks.run(n, _with_axes, strategy, size, together, axes)[0]
    assert_same(found, alone(clip))


def _with_axes(strategy: str, size: int, together: bool, axes: dict[str, Any]) -> dict[str, Any]:
    return in_session(strategy, size, together, **axes)


@every_row
@pytest.mark.parametrize(("n", "size"), [(2, 2), (4, 2)])
def test_windows_of_micro_batches_end_as_one_process_ends_them(strategy: str, n: int, size: int) -> None:
    found = ranks.run(n, _with_axes, strategy, size, True, {"accumulate": 4})[0]
    assert_same(found, alone(accumulate=4))


def overflowing(strategy: str) -> list[Any] | str:
    """One rank's shard overflows in the second step: all skip it, and the scale falls on all."""
    session = Session(strategy=strategy, device="cpu", precision="fp16", settings=[AMPConfig(init_scale=2.0**10)])
    group = group_of()
    model = Model(group, together=True)
    try:
        session.prepare(model, SGD)
    except SpecError as error:
        return str(error)
    skipped = []
    for i, (x, y) in enumerate(batches()[:3]):
        session.backward(loss_of(session, group, True, x, y))
        if i == 1 and session.world.rank == 1:
            assert model.head.weight.grad is not None
            model.head.weight.grad[0, 0] = float("inf")
        step = session.step()
        assert step is not None
        skipped.append(step.skipped)
    assert session.scaler is not None
    return [
        skipped,
        session.scaler.torch.get_scale(),
        session.steps,
        {n: p.tolist() for n, p in model.trunk.named_parameters()},
    ]


@every_row
def test_an_overflow_in_one_ranks_shard_makes_all_skip(strategy: str) -> None:
    first, second = ranks.run(2, overflowing, strategy)
    assert first == second
    if isinstance(first, str):
        assert "which torch's FSDP2 does not cast" in first
        return
    assert first[:3] == [[False, True, False], 2.0**9, 2]


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


def sharing(**axes: Any) -> None:
    refuse_shared(Model(Group((0, 1), 1), together=True), Spec(**axes), Row(name="other", shared=True))


def test_a_plan_beside_layers_that_ranks_share_is_refused() -> None:
    with pytest.raises(SpecError, match="a plan shards layers too"):
        sharing(tensor=2, settings=[TensorConfig(plan={"trunk": "columns"})])


def test_groups_that_share_their_data_are_those_that_share_layers() -> None:
    sharing(tensor=2)
    with pytest.raises(SpecError, match=r"shared by 2 ranks.*group of 4"):
        sharing(tensor=4)


def test_ranks_that_share_data_but_no_layer_are_refused() -> None:
    with pytest.raises(SpecError, match="no layer of the model is one that ranks share"):
        refuse_shared(nn.Linear(2, 2), Spec(tensor=2), Row(name="other", shared=True))


def with_dropout(strategy: str) -> list[Any]:
    """Ranks of a group see the same batch of the loader, under the same dropout, and so agree on the loss."""
    session = Session(strategy=strategy, device="cpu", tensor=2, seed=3)
    group = group_of(2)
    model = Model(group, together=False)
    model.trunk = nn.Sequential(model.trunk, nn.Dropout(0.5))  # type: ignore[assignment]
    session.prepare(model, SGD)
    loader = session.loader(torch.utils.data.TensorDataset(*batches()[0]), 3, shuffle=True)
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(session.forward(x), y)
        session.backward(loss)
        session.step()
        losses.append(loss.item())
    return losses


@every_row
def test_ranks_that_share_layers_and_data_agree_on_batches_and_dropout(strategy: str) -> None:
    if not possible(strategy, 4, tensor=2):
        pytest.skip("not in 4 processes")
    first, second, third, fourth = ranks.run(4, with_dropout, strategy)
    assert first == second
    assert third == fourth
    assert first != third


def test_a_strategy_that_would_take_shards_for_copies_refuses_them() -> None:
    group = Group((0, 1), 1)
    with pytest.raises(SpecError, match="would take it for a copy"):
        refuse_shared(Model(group, together=True), Spec(), Row(name="other"))


def with_frozen_trunk(strategy: str) -> list[Any]:
    session = Session(strategy=strategy, device="cpu", clip=0.3)
    group = group_of()
    model = Model(group, together=True)
    model.trunk.requires_grad_(False)
    with torch.no_grad():
        model.trunk.weight.add_(session.world.rank)  # rank 0's counts
    session.prepare(model, SGD)
    for x, y in batches():
        session.backward(loss_of(session, group, True, x, y))
        session.step()
    found = trained(session)
    return [found, found["trunk.weight"].tolist()]


@every_row
def test_a_head_on_frozen_features_is_trained_though_there_is_nothing_to_average(strategy: str) -> None:
    (found, first), (_, second) = ranks.run(2, with_frozen_trunk, strategy)
    model = Model(group_of(1), together=False)
    model.trunk.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.2, momentum=0.9)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
    assert first == second
    assert_same(found, {name: value.numpy() for name, value in model.state_dict().items()})


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
