"""Runs of the digits that several tests look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.examples.running import FEW, Ran, launch


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Two short epochs under a spec file; a micro-batch of all processes has 32 samples."""

    @cache
    def ran(spec: str) -> Ran:
        batch_size = 32 if spec == "cpu" else 16
        return launch(tmp_path_factory.mktemp(spec), spec, "digits/train.py", *FEW, "--batch-size", batch_size)

    return ran
