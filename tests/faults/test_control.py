"""The harness finds what it is for: torch's checkpoint in one folder mixes generations, and it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import dcp, warm
from tests.faults.saves import NEW, OLD
from tests.faults.trials import killed, unplugged


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_save_of_torch_over_another_loads_as_a_mixture(folder: Path, victim: int) -> None:
    outcomes = warm.call(dcp.warmed, killed, dcp.TRIAL, folder, victim)
    seen = [outcome.seen for outcome in outcomes]
    assert {OLD, NEW} in seen
    assert not any(end.hung for outcome in outcomes for end in outcome.ends)


def test_power_that_fails_there_leaves_a_mixture_too(folder: Path) -> None:
    seen = [it for _, it in warm.call(dcp.warmed, unplugged, dcp.TRIAL, folder)]
    assert seen[0] == {OLD}
    assert {OLD, NEW} in seen
