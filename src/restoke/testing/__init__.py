"""The conformance suite for strategies: `cases` lists what to try, and each of `CHECKS` proves one promise on real ranks.

A package that brings a strategy tests it with::

    @pytest.mark.parametrize("case", cases(only="mine"), ids=str)
    @pytest.mark.parametrize("check", CHECKS)
    def test_keeps_the_contract(check, case):
        if applies(check, case):
            check(case)
"""

from restoke.testing.cases import Case, cases
from restoke.testing.contract import CHECKS, applies

__all__ = ["CHECKS", "Case", "applies", "cases"]
