"""Stoke objects on two ranks that talk over gloo, on the CPU (which Stoke itself refused)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import ranks
from tests.facades.stoke import on_ranks
from tests.facades.stoke.samples import stoke


# B17: with several losses only the first was reduced, and the replicas went apart
@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (4, 0.3)])
def test_ddp_trains_as_bare_ddp_to_the_last_bit(losses: int, accumulate: int, clip: float | None) -> None:
    mine = ranks.run(2, on_ranks.by_stoke, losses, accumulate, {"grad_clip": clip})
    bare = ranks.run(2, on_ranks.by_bare_ddp, losses, accumulate, clip)
    assert mine[0] == mine[1]
    assert mine == bare


# B16: no_sync around the backward alone saved nothing
@pytest.mark.parametrize("losses", [1, 3])
def test_gradients_are_reduced_once_in_a_window(losses: int) -> None:
    assert ranks.run(2, on_ranks.reductions, 4, losses) == [[0, 0, 0, 1] * 2] * 2


# B20: a group that was there already. B21, B22: the local rank as text, or none. B24: static_graph was never read
def test_the_settings_of_ddp_are_obeyed() -> None:
    for rank, told in enumerate(ranks.run(2, on_ranks.settings)):
        assert told == {
            "static": True,
            "cap": 2**20,
            "config": True,
            "model": True,
            "rank": rank,
            "size": 2,
            "effective": 16,
            "ddp": True,
            "gpu": False,
            "distributed": "ddp",
            "status": 2,
        }


# B19: every loss() was a barrier, a collective and two waits for the device
def test_ranks_may_compute_and_read_different_numbers_of_losses() -> None:
    (mean, one), (same, other) = ranks.run(2, on_ranks.uneven_losses)
    assert mean == same == 0.5
    assert one != other  # each rank's own


def test_synced_losses_are_means_over_the_ranks_in_more_than_float16() -> None:
    zero, one = ranks.run(2, on_ranks.synced)
    assert zero["tuple"] == one["tuple"] == (1.5, 45000.0)  # their sum does not fit into float16
    assert zero["one"] == one["one"] == 1.5
    assert (zero["local"], one["local"]) == ([1.0, 30000.0], [2.0, 60000.0])
    assert zero["out"] == "Stoke -- there\n"
    assert one["out"].replace("Stoke -- ", "").splitlines() == [
        "Step Synced Loss 0: 1.500",
        "Step Synced Loss 1: 45000.000",
        "one: 1.500",
        "Current EMA Loss 0: 1.500",
        "Current EMA Loss 1: 45000.000",
        "here",
    ]


def test_without_an_info_rank_nobody_prints() -> None:
    assert ranks.run(2, on_ranks.nobody_prints) == ["", "Stoke -- but this\n"]


# B20, and issue 19 of Stoke
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gan_trains_two_stokes_over_one_group(precision: str) -> None:
    mine, bare = ranks.run(2, on_ranks.gan_by_stoke, precision), ranks.run(2, on_ranks.gan_by_hand)
    assert mine[0] == mine[1]
    if precision == "fp32":
        assert mine == bare
    else:
        assert [sum(row) for row in mine[0]] == pytest.approx([sum(row) for row in bare[0]], abs=0.1)


def test_a_barrier_is_passed_together(tmp_path: Path) -> None:
    assert ranks.run(2, on_ranks.waited, str(tmp_path)) == [True, True]


# B45: each rank had a tag of its own
@pytest.mark.parametrize("own_name", [True, False])
def test_a_checkpoint_has_one_tag_for_all_ranks(own_name: bool, tmp_path: Path) -> None:
    tag = f"stoke-{'at-0' if own_name else 'checkpoint'}-backward-step-1"
    assert ranks.run(2, on_ranks.saved, str(tmp_path), own_name) == [[str(tmp_path), tag, {}, [tag]]] * 2


# B28: what failed on rank 0 left the others in a barrier for ever
def test_a_save_that_fails_fails_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    told = ranks.run(2, on_ranks.saved_where_nothing_can_be, str(tmp_path))
    assert told == [["CheckpointError checkpoint", "CheckpointError path"]] * 2


@pytest.mark.parametrize("at", [3, 4, 6])
def test_two_ranks_go_on_bit_for_bit(at: int, tmp_path: Path) -> None:
    whole = ranks.run(2, on_ranks.interrupted, None, 0)
    assert ranks.run(2, on_ranks.interrupted, str(tmp_path), at) == whole
    assert len(whole[0]) == 12


def test_another_world_size_goes_on_with_the_mean_of_the_averages(tmp_path: Path) -> None:
    told: list[Any] = ranks.run(2, on_ranks.followed, str(tmp_path))
    it = stoke()
    it.load(tmp_path)
    assert (it.step_loss, it.ema_loss) == pytest.approx([sum(pair) / 2 for pair in zip(*told, strict=True)])
    assert (it.backward_steps, it.optimizer_steps) == (3, 3)
