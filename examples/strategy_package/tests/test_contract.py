"""The strategy keeps restoke's contract: what every strategy promises, proven on real processes."""

from __future__ import annotations

import pytest

from restoke.testing import CHECKS, Case, applies, cases

POINTS = [(check, case) for case in cases(only="averaged") for check in CHECKS if applies(check, case)]


@pytest.mark.parametrize(("check", "case"), POINTS, ids=[f"{check.__name__}-{case}" for check, case in POINTS])
def test_keeps_the_contract(check, case: Case) -> None:
    check(case)
