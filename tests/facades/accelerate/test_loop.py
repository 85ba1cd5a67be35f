"""Accelerate's loop against bare PyTorch and bare DDP: windows, short ones too, clipping, schedules, and every strategy."""

from __future__ import annotations

from typing import Any

import pytest

from tests import ranks
from tests.facades.accelerate import on_ranks, several
from tests.facades.accelerate.close import close
from tests.strategies.test_models import ROWS

CASES = [(16, 1, None), (20, 2, None), (18, 3, None), (28, 2, 0.3)]


def check(mine: Any, bare: Any) -> None:
    assert close(mine[0], bare[0])
    assert mine[1:] == bare[1:]


@pytest.mark.parametrize(("count", "accumulate", "clip"), CASES)
def test_one_process_trains_as_bare_pytorch(count: int, accumulate: int, clip: float | None) -> None:
    check(on_ranks.trained(count, accumulate, clip), on_ranks.by_hand(count, accumulate, clip))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("count", "accumulate", "clip"), CASES)
def test_ranks_train_as_bare_ddp(size: int, count: int, accumulate: int, clip: float | None) -> None:
    mine = ranks.run(size, on_ranks.trained, count, accumulate, clip)
    for own, other in zip(mine, ranks.run(size, on_ranks.by_hand, count, accumulate, clip), strict=True):
        check(own, other)


@pytest.mark.parametrize("strategy", ROWS)
def test_other_strategies_train_alike(strategy: str) -> None:
    mine = ranks.run(2, on_ranks.with_strategy, strategy, 20, 2, 0.3)
    for own, other in zip(mine, ranks.run(2, on_ranks.by_hand, 20, 2, 0.3), strict=True):
        check(own, other)


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_optimizer_steps_two_models(strategy: str, momentum: bool) -> None:
    mine = ranks.run(2, several.one_optimizer_of_two_models, strategy, momentum)
    bare = ranks.run(2, several.one_optimizer_of_two_models, None, momentum)
    assert close(mine, bare)


def test_one_optimizer_steps_two_models_in_one_process() -> None:
    assert close(several.one_optimizer_of_two_models("single", True), several.one_optimizer_of_two_models(None, True), within=0)


def test_two_optimizers_step_one_model() -> None:
    mine, bare = (ranks.run(2, several.two_optimizers_of_one_model, prepared) for prepared in (True, False))
    assert close(mine, bare)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gan_trains_under_one_accelerator(accumulate: int) -> None:
    mine, bare = (ranks.run(2, several.gan, prepared, accumulate) for prepared in (True, False))
    assert close(mine, bare)


@pytest.mark.parametrize("order", ["mo", "om"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_model_and_optimizer_may_be_prepared_apart(strategy: str, order: str) -> None:
    assert close(ranks.run(2, several.apart, strategy, order), ranks.run(2, several.bare))


def test_a_strategy_that_shards_an_optimizer_wants_it_with_its_model() -> None:
    with pytest.raises(ranks.RankError, match="prepare\\(model, optimizer\\) in one call"):
        ranks.run(2, several.one_optimizer_of_two_models, "zero1", False)


def test_an_optimizer_of_a_model_that_was_not_prepared_is_refused_when_it_steps() -> None:
    for told in ranks.run(2, several.strange_optimizer):
        assert "none of a prepared model's" in told


def test_gradients_of_several_forwards_are_reduced_with_the_last_backward() -> None:
    for mine, bare in ranks.run(2, several.several_forwards):
        assert close(mine, bare)


def test_the_fsdp_plugin_shards_on_cpus_too() -> None:
    mine = ranks.run(2, several.sharded_by_plugin)  # first: it makes the group
    for (kind, found, _), expected in zip(mine, ranks.run(2, several.bare), strict=True):
        assert kind == "FSDP"  # Accelerate ran DDP, without a word
        assert close(found, expected)
