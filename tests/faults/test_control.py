"""The harness finds what it is for: torch's checkpoint in one folder mixes generations, and it is seen."""

from __future__ import annotations

from pathlib import Path

from tests.faults import dcp, warm
from tests.faults.saves import NEW, OLD
from tests.faults.trials import killed, unplugged


def test_a_killed_save_of_torch_over_another_loads_as_a_mixture(folder: Path) -> None:
    outcomes = warm.call(dcp.warmed, killed, dcp.TRIAL, folder)
    seen = [outcome.seen for outcome in outcomes]
    assert {OLD, NEW} in seen
    assert {OLD} in seen
    assert seen[-1] == {NEW}
    assert not any(end.hung for outcome in outcomes for end in outcome.ends)


def test_power_that_fails_there_leaves_a_mixture_too(folder: Path) -> None:
    seen = warm.call(dcp.warmed, unplugged, dcp.TRIAL, folder)
    assert {OLD, NEW} in [it for _, it in seen]
