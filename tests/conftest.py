"""What holds for every test: a clean environment, one thread, and which tests this machine or this run leaves out."""

from __future__ import annotations

import os
from functools import cache

import pytest

FULL = os.environ.get("RESTOKE_TEST_FULL") == "1"
# Where pytest itself was started by a launcher (in a Slurm step, say), a test must not take its rank for its own.
LAUNCHER_VARIABLES = (
    "RESTOKE_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "TORCHELASTIC_",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD",
)


def pytest_configure(config: pytest.Config) -> None:
    for name in [name for name in os.environ if name.startswith(LAUNCHER_VARIABLES)]:
        del os.environ[name]
    # Before torch is first imported, and for every process that a test starts: sums in one order, and no fight for the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@cache
def gpu_is_here() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and not FULL:
        pytest.skip("part of the whole product: scripts/test --full")
    if item.get_closest_marker("gpu") and not gpu_is_here():
        pytest.skip("needs a GPU")
