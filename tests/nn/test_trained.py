"""Layers that ranks share, trained in sessions: as one process trains the whole, and saved for any other world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from restoke import OptimizerSpec, Session, TensorConfig
from restoke.configs import AMPConfig
from restoke.distributed import Group, group_of
from restoke.errors import SpecError
from restoke.nn.trained import refuse_shared
from restoke.rows import Row
from restoke.spec import Spec
from restoke.testing.training import trained
from tests import ranks
from tests.nn.shared_model import (
    SGD,
    Model,
    alone,
    assert_same,
    batches,
    every_row,
    in_session,
    loss_of,
    possible,
)


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
    model.register_buffer("seen", torch.full((2,), session.world.rank, dtype=torch.int16))  # which no backend sends
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
    assert found.pop("seen").tolist() == [0, 0]
    assert_same(found, {name: value.numpy() for name, value in model.state_dict().items()})


def optimizer_refused(strategy: str) -> str:
    session = Session(strategy=strategy, device="cpu")
    with pytest.raises(SpecError) as refused:
        session.prepare(Model(group_of(), together=True), OptimizerSpec(torch.optim.Adafactor, {"lr": 0.1}))
    return str(refused.value)


@every_row
def test_an_optimizer_that_mixes_elements_is_refused_where_each_rank_would_step_its_part(strategy: str) -> None:
    for said in ranks.run(2, optimizer_refused, strategy):
        assert "optimizer='Adafactor': what it does to an element depends on the others" in said
