"""The contract suite on GPUs: the same cases, on CUDA and NCCL."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from restoke.testing import CHECKS, Case, applies, cases

POINTS = [(check, case) for case in cases(device="cuda") for check in CHECKS if applies(check, case)]


@pytest.mark.gpu
@pytest.mark.parametrize(("check", "case"), POINTS, ids=[f"{check.__name__}-{case}" for check, case in POINTS])
def test_keeps_the_contract_on_gpus(check: Callable[[Case], None], case: Case) -> None:
    import torch

    if case.processes > torch.cuda.device_count():
        pytest.skip(f"needs {case.processes} GPUs")
    check(case)
