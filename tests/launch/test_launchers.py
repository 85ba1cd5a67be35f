"""The same script under every launcher: each rank knows who it is, and they meet."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("any_launcher.py")
RESTOKE = (sys.executable, "-m", "restoke.cli", "launch")


def seen(command: tuple[str, ...], folder: Path) -> list[dict[str, object]]:
    """What each rank wrote."""
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder)], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return what_is_in(folder)


def what_is_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def expected(launcher: str, local_ranks: tuple[int, ...] = (0, 1), accumulate: int = 2) -> list[dict[str, object]]:
    common = {"strategy": "ddp", "accumulate": accumulate, "size": 2, "launcher": launcher, "total": 3.0}
    return [common | {"local_rank": local_rank} for local_rank in local_ranks]


@pytest.mark.parametrize(("launcher", "accumulate"), [((sys.executable,), 2), ((*RESTOKE, "--accumulate", "3"), 3)])
def test_without_several_processes_there_is_one(launcher: tuple[str, ...], accumulate: int, tmp_path: Path) -> None:
    alone = {"strategy": "single", "accumulate": accumulate, "size": 1, "local_rank": 0, "launcher": None, "total": 1.0}
    assert seen(launcher, tmp_path) == [alone]


def test_a_script_that_imports_stoke_runs_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(
        "import stoke.configs\nfrom stoke import Stoke, StokeOptimizer\nprint(stoke.Stoke is Stoke, Stoke.__module__)"
    )
    command = [*RESTOKE, "--device", "cpu", "--as", "stoke", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("True restoke.facades.stoke"), done.stderr


def test_restoke_launch_starts_two_ranks_under_what_was_declared(tmp_path: Path) -> None:
    assert seen((*RESTOKE, "--processes", "2", "--accumulate", "3"), tmp_path) == expected("torchrun", accumulate=3)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("module", ["run", "launch"])
def test_torchs_own_launchers_start_two_ranks(module: str, tmp_path: Path) -> None:
    options = ("--nproc-per-node=2", f"--master-port={free_port()}")
    command = (sys.executable, "-W", "ignore", "-m", f"torch.distributed.{module}", *options)
    assert seen(command, tmp_path) == expected("torchrun")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI (apt-get install openmpi-bin)")
def test_open_mpi_starts_two_ranks(tmp_path: Path) -> None:
    command = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable)
    assert seen(command, tmp_path) == expected("openmpi")


def test_two_nodes_meet(tmp_path: Path) -> None:
    where = ("--nodes", "2", "--processes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    agents = [
        subprocess.Popen(
            [*RESTOKE, *where, "--node-rank", node, str(SCRIPT), str(tmp_path)],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        for node in "01"
    ]
    errors = [agent.communicate(timeout=100)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    assert what_is_in(tmp_path) == expected("torchrun", local_ranks=(0, 0))
