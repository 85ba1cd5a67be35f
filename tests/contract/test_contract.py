"""The contract suite over the table: a new row is tested by what is here."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from restoke.testing import CHECKS, Case, applies, cases

FULL = os.environ.get("RESTOKE_TEST_FULL") == "1"
POINTS = [(check, case) for case in cases(full=FULL) for check in CHECKS if applies(check, case)]


@pytest.mark.parametrize(("check", "case"), POINTS, ids=[f"{check.__name__}-{case}" for check, case in POINTS])
def test_keeps_the_contract(check: Callable[[Case], None], case: Case) -> None:
    check(case)
