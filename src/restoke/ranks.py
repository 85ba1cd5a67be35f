"""Which of how many processes this one is, as whatever started it says: torchrun, Open MPI, MPICH, Slurm, or nothing."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from restoke.errors import WorldError


class Launcher(NamedTuple):
    """How one launcher tells a process its rank. `rendezvous` names what all processes of a job share, to agree on a port."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    rendezvous: tuple[str, ...] = ()


# torch's own variables come first: torchrun inside a Slurm or MPI job sets them for its children, and theirs count.
LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    Launcher("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_ID", "HYDI_CONTROL_FD")),
    # SLURM_PROCID is also set in a batch script outside any step; only a step (srun) has a number of tasks of its own.
    Launcher(
        "slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)


class Ranks(NamedTuple):
    """Who this process is in its job. `launcher` is None where nothing but the user started it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0


def discover(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Read the launcher's variables.

    Raises:
        WorldError: they are incomplete, not numbers, or contradict each other.
    """
    launcher = next(
        (item for item in LAUNCHERS if item.rank in environ and (item.size in environ or item.name == "torchrun")), None
    )
    if launcher is None:
        return Ranks()
    rank, size = _number(environ, launcher.rank), _number(environ, launcher.size)
    if not 0 <= rank < size:
        raise WorldError.of(launcher.rank, rank, f"{launcher.size} is {size}", f"a rank from 0 to {size - 1}")
    local_size = _first_count(environ.get(launcher.local_size), default=size)
    local_rank = _number(environ, launcher.local_rank, default=rank % local_size)
    _check_outer(launcher, size, environ)
    addr, port = _master(launcher, environ, one_node=local_size == size)
    return Ranks(rank, size, local_rank, local_size, launcher.name, addr, port)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise WorldError.of(
            name, None, "the launcher's variables are incomplete", "start with torchrun, or set or unset all of them"
        )
    try:
        return int(text)
    except ValueError as error:
        raise WorldError.of(name, text, "it is not a number", "let the launcher set it") from error


def _first_count(text: str | None, default: int) -> int:
    """Slurm writes tasks per node as `2(x3),1`: every node that matters here has the first number or fewer."""
    digits = (text or "").split("(")[0].split(",")[0]
    return int(digits) if digits.isdigit() and int(digits) > 0 else default


def _check_outer(used: Launcher, size: int, environ: Mapping[str, str]) -> None:
    """Variables of torchrun's kind, exported by hand into each process of an MPI job, would make every one rank 0 of 1."""
    if used.name != "torchrun" or "TORCHELASTIC_RUN_ID" in environ:
        return
    for other in LAUNCHERS[1:]:
        outer = environ.get(other.size)
        if other.rank in environ and outer is not None and outer.isdigit() and int(outer) > size:
            why = f"{other.name} started {outer} processes, but WORLD_SIZE says {size}"
            raise WorldError.of("WORLD_SIZE", size, why, "unset RANK and WORLD_SIZE, or set them per process")


def _master(launcher: Launcher, environ: Mapping[str, str], one_node: bool) -> tuple[str, int]:
    addr = environ.get("MASTER_ADDR") or _derived_addr(launcher, environ, one_node)
    port = environ.get("MASTER_PORT")
    if port is None and launcher.name == "torchrun":
        raise WorldError.of("MASTER_PORT", None, "WORLD_SIZE is set, but not where to meet", "start with torchrun, or set it")
    if port is None:
        shared = "/".join(environ.get(name, "") for name in launcher.rendezvous)
        return addr, 20000 + zlib.crc32(shared.encode()) % 10000  # below the ports that the system hands out by itself
    number = _number(environ, "MASTER_PORT")
    if number == 0:
        why = "the ranks cannot meet at a port that only one of them knows, and would wait for each other"
        raise WorldError.of("MASTER_PORT", 0, why, "torchrun --standalone, which finds a free one, or a number")
    return addr, number


def _derived_addr(launcher: Launcher, environ: Mapping[str, str], one_node: bool) -> str:
    if one_node:
        return "127.0.0.1"
    if launcher.name == "slurm" and environ.get("SLURM_LAUNCH_NODE_IPADDR"):
        return environ["SLURM_LAUNCH_NODE_IPADDR"]
    raise WorldError.of("MASTER_ADDR", None, f"{launcher.name} runs on several nodes", "export MASTER_ADDR, the host of rank 0")
