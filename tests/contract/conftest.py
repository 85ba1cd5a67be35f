"""Records which cells of the compatibility matrix the contract suite proved, where RESTOKE_RECORD names a file for it."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest

RECORD = os.environ.get("RESTOKE_RECORD")  # read before the common conftest drops what launchers set
_OUTCOMES: dict[str, bool] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "call" and hasattr(item, "callspec") and "case" in item.callspec.params:
        spec = item.callspec.params["case"].spec
        cell = f"{spec.strategy}/{spec.precision}/{spec.device}"
        _OUTCOMES[cell] = _OUTCOMES.get(cell, True) and report.passed
    return report


def pytest_sessionfinish() -> None:
    if RECORD is None:
        return
    import torch

    versions = {"torch": torch.__version__.split("+")[0], "Python": ".".join(platform.python_version_tuple()[:2])}
    passed = sorted(cell for cell, good in _OUTCOMES.items() if good)
    Path(RECORD).write_text(json.dumps({"passed": passed, "versions": versions}, indent=1) + "\n")
