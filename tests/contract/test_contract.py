"""The contract suite over the table: a new row is tested by what is here."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from restoke.testing import CHECKS, Case, applies, cases
from restoke.testing.contract import check_windows

FULL = os.environ.get("RESTOKE_TEST_FULL") == "1"
# short windows concern few axes: every pair of those, since the pairs of all axes leave few of their cases
POINTS = [
    (check, case) for check in CHECKS for case in cases(full=FULL, windows=check is check_windows) if applies(check, case)
]


@pytest.mark.parametrize(("check", "case"), POINTS, ids=[f"{check.__name__}-{case}" for check, case in POINTS])
def test_keeps_the_contract(check: Callable[[Case], None], case: Case) -> None:
    check(case)
