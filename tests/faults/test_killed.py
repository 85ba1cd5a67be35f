"""Killed before any of its file operations, on any rank, a save leaves wholly the old generation or wholly the new one."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

from tests.faults import saves, warm
from tests.faults.saves import NEW, NEXT, OLD, replacing
from tests.faults.trials import Outcome, Trial, killed

CASES = [(tag, keep, ranks) for ranks in (1, 2) for tag in ("new", "old") for keep in (None, 1)]
USUAL = [case if case[1:] != (None, 2) else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


def check_ends(outcomes: list[Outcome]) -> None:
    """The victim died where it should, and nobody hung: who outlives it is told, or was done."""
    for outcome in outcomes:
        victim = outcome.ends[outcome.point.rank]
        others = [end for end in outcome.ends if end is not victim]
        assert victim.killed if outcome.operation else victim.code == 0, str(outcome)
        assert not any(end.hung for end in others), str(outcome)
        assert {end.kind for end in others} <= ({"RuntimeError", "CheckpointError"} if outcome.operation else {""}), str(
            outcome
        )


@pytest.mark.parametrize(("tag", "keep", "ranks"), USUAL)
def test_killed_before_any_operation_the_old_or_the_new_generation_loads(
    folder: Path, tag: str, keep: int | None, ranks: int
) -> None:
    outcomes = warm.call(killed, replacing(tag, keep, ranks), folder)
    check_ends(outcomes)
    for rank, some in itertools.groupby(outcomes, key=lambda it: it.point.rank):
        each = [(str(it), it.seen) for it in some]
        assert all(seen.newest in ({OLD}, {NEW}) and not seen.notes for _, seen in each), each
        allowed = {"new": {NEW}, "old": {OLD}} if tag == "new" else {"old": {OLD, NEW}}
        assert all(len(held) == 1 and held <= allowed[name] for _, seen in each for name, held in seen.tags.items()), each
        assert all("old" in seen.tags or (keep == 1 and seen.newest == {NEW}) for _, seen in each), each
        assert all((seen.after, seen.left) == ({NEXT}, {"next"}) for _, seen in each), each
        order = [min(seen.newest) for _, seen in each]
        assert order == sorted(order)
        assert (order[0], order[-1]) == (OLD, NEW)
        assert len(order) > (13 if rank == 0 else 4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_in_the_first_save_ever_there_is_nothing_or_all_of_it(folder: Path, ranks: int) -> None:
    trial = Trial(saves.nothing, partial(saves.saved, tag="first", keep=None), saves.look, ranks)
    outcomes = warm.call(killed, trial, folder)
    check_ends(outcomes)
    for outcome in outcomes:
        if isinstance(outcome.seen, str):
            assert outcome.operation, str(outcome)
            assert "it is empty" in outcome.seen
        else:
            assert outcome.seen.tags == {"first": {NEW}}
    assert len(outcomes) > 12
