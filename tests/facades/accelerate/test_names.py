"""Names, module paths and launchers: what scripts import, and how their own habits are kept."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from restoke.errors import LaunchError
from restoke.facades import accelerate
from restoke.facades.accelerate import debug_launcher, get_logger, notebook_launcher
from restoke.facades.accelerate.as_written import Accelerator as AsWritten
from restoke.facades.accelerate.names import MODULES, PLACES, VIRTUAL
from tests.facades.accelerate.test_windows import grads_of

SCRIPT = """
import torch
from accelerate import Accelerator, __version__
from accelerate.utils import DistributedType, set_seed
from accelerate.utils.operations import gather
from accelerate.state import PartialState

accelerator = Accelerator()
assert accelerator.distributed_type == DistributedType.MULTI_CPU
set_seed(1)
assert gather(torch.ones(1) * accelerator.process_index).tolist() == [0.0, 1.0]
accelerator.print("all is well", __version__)
"""


def test_every_name_is_there_and_every_module_can_be_imported() -> None:
    for name in PLACES:
        assert getattr(accelerate, name) is not None
    for name, module in MODULES.items():
        assert importlib.import_module(module), name
    for name in VIRTUAL:
        assert importlib.import_module(f"restoke.facades.accelerate.{name}")
    from restoke.facades.accelerate.utils import (  # type: ignore[import-not-found]
        is_pytest_available,
        is_torch_version,
        is_tpu_available,
        set_seed,
    )

    assert is_pytest_available()
    assert not is_tpu_available()
    assert is_torch_version(">=", "2.0")
    assert callable(set_seed)


def test_scripts_of_accelerate_keep_its_full_window_and_its_scheduler() -> None:
    assert AsWritten.HABITS
    assert grads_of(2, 3, kind=AsWritten) == [1.0, 0.5]


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "restoke", "launch", "--as", "accelerate", "--processes", "2", "script.py"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert "all is well 1.15.0" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_ops", "test_sync", "test_script", "test_distributed_data_loop"])
def test_accelerates_own_scripts_pass(name: str, tmp_path: Path) -> None:
    found = importlib.util.find_spec("accelerate")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("accelerate is not installed")
    script = Path(next(iter(found.submodule_search_locations)), "test_utils", "scripts", f"{name}.py")
    words = [sys.executable, "-m", "restoke", "launch", "--as", "accelerate", "--processes", "2", str(script)]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def meet(folder: str) -> None:
    state = accelerate.PartialState()
    told = accelerate.gather(torch.tensor([float(state.process_index)])).tolist()
    Path(folder, str(state.process_index)).write_text(f"{told} {state.device}")


def test_a_debugging_launcher_starts_ranks_on_the_cpu(tmp_path: Path) -> None:
    words = f"from tests.facades.accelerate.test_names import *; debug_launcher(meet, ({str(tmp_path)!r},))"
    ran = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[3]
    )
    assert ran.returncode == 0, ran.stderr
    assert [(tmp_path / name).read_text() for name in "01"] == ["[0.0, 1.0] cpu"] * 2


def test_launchers_refuse_what_they_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    notebook_launcher(seen.append, (3,), num_processes=1)
    assert seen == [3]
    with pytest.raises(LaunchError, match="restoke launch --nodes"):
        notebook_launcher(seen.append, num_nodes=2)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(LaunchError, match="one of several"):
        debug_launcher(seen.append)


def test_a_logger_speaks_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("restoke.test", log_level="info")
    with caplog.at_level(logging.INFO):
        logger.info("here")
        logger.info("mine", main_process_only=False)
        for _ in range(2):
            logger.warning_once("only once")
    assert caplog.messages == ["here", "[RANK 0] mine", "only once"]
    assert os.environ.get("RANK") is None
