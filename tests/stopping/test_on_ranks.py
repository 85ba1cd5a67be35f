"""Real ranks under DDP are asked to stop at random moments: all do so after the same step, and go on as if they had not."""

from __future__ import annotations

from pathlib import Path

from tests.ranks import run
from tests.stopping import on_ranks
from tests.stopping.on_ranks import Ran

TRIALS = 30


def assert_as_if_never_stopped(stopped: list[Ran], resumed: list[Ran], whole: list[Ran]) -> None:
    assert len({ran.stopped for ran in stopped}) == 1
    assert [ran.stopped for ran in resumed] == [None, None]
    assert [(ran.steps, ran.weights) for ran in resumed] == [(ran.steps, ran.weights) for ran in whole]
    assert resumed[0].buffers == whole[0].buffers


def test_every_random_signal_stops_both_ranks_after_the_same_step_and_the_restart_is_exact(tmp_path: Path) -> None:
    (whole, first), (whole_too, second) = run(2, on_ranks.many_stops, str(tmp_path), TRIALS, timeout=100)
    for (stopped, resumed), (stopped_too, resumed_too) in zip(first, second, strict=True):
        assert_as_if_never_stopped([stopped, stopped_too], [resumed, resumed_too], [whole, whole_too])
        assert stopped.steps == (stopped.stopped or whole.steps)  # it trains to its end where there is no later step
    ends = [stopped.stopped for stopped, _ in first]
    assert len(set(ends) - {None}) > 4
    assert ends.count(None) < TRIALS / 3
    assert {stopped.epoch for stopped, _ in first} >= {1, 2}


def test_steps_that_an_overflow_skips_are_boundaries_too(tmp_path: Path) -> None:
    for stopped, resumed, whole in zip(*zip(*run(2, on_ranks.stopped_while_skipping, str(tmp_path)), strict=True), strict=True):
        assert stopped.stopped == 0
        assert whole.steps > 0
        assert (resumed.steps, resumed.weights) == (whole.steps, whole.weights)


def test_a_signal_to_every_rank_is_one_request(tmp_path: Path) -> None:
    stops = {ran.stopped for ran in run(2, on_ranks.every_rank_at_once, str(tmp_path))}
    assert stops in ({2}, {3})


def test_it_saves_regularly_and_keeps_the_newest(tmp_path: Path) -> None:
    assert run(2, on_ranks.saved_regularly, str(tmp_path)) == [["step-4", "step-6", "step-8"]] * 2


def test_two_sessions_are_saved_where_the_last_has_stepped(tmp_path: Path) -> None:
    answers = run(2, on_ranks.stopped_gan, str(tmp_path))
    for (stopped, _, none), (ended, weights, extras), (_, whole, _) in answers:
        assert (none, ended) == ({}, None)
        assert extras == {"iterations": stopped}
        assert weights == whole
    assert answers[0][0][0] == answers[1][0][0]


def test_a_rank_that_has_finished_stops_nobody() -> None:
    first, second = run(2, on_ranks.asked_after_another_has_finished)
    assert second == 3
    assert first > 3


def test_a_rank_that_finishes_before_the_agreed_step_is_not_waited_for() -> None:
    assert run(2, on_ranks.finishes_before_the_agreed_step) == [29, 4]


def test_a_rank_that_does_not_answer_is_named() -> None:
    error, _ = run(2, on_ranks.one_never_answers)
    assert "rank 1 did not answer" in error
    assert "untouched" in error
