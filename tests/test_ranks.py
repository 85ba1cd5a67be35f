"""Rank discovery: every launcher's variables, and what is incomplete or contradicts itself."""

from __future__ import annotations

import pytest

from restoke.errors import WorldError
from restoke.ranks import Ranks, discover

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "1234",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "job7",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "0",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_nothing_started_it() -> None:
    assert discover({}) == Ranks()


def test_torchrun() -> None:
    assert discover(TORCHRUN) == Ranks(3, 4, 1, 2, "torchrun", "node0", 1234)


def test_open_mpi_meets_on_a_port_that_all_processes_of_the_job_derive() -> None:
    found = discover(OPENMPI)
    assert (found.rank, found.size, found.local_rank, found.launcher, found.master_addr) == (3, 4, 3, "openmpi", "127.0.0.1")
    assert found.master_port == discover(OPENMPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}).master_port
    assert found.master_port != discover(OPENMPI | {"PMIX_NAMESPACE": "job8"}).master_port
    assert 1024 < found.master_port < 32768


def test_slurm_over_several_nodes_meets_at_the_node_that_launched() -> None:
    found = discover(SLURM)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (3, 4, 1, 2)
    assert (found.launcher, found.master_addr) == ("slurm", "10.0.0.1")


def test_a_slurm_batch_script_outside_a_step_is_one_process() -> None:
    assert discover({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "9"}) == Ranks()


def test_mpich() -> None:
    assert (discover(MPICH).rank, discover(MPICH).size, discover(MPICH).launcher) == (1, 2, "mpich")


def test_torchrun_inside_a_slurm_step_counts_as_torchrun() -> None:
    found = discover(SLURM | TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"})
    assert (found.launcher, found.rank, found.size) == ("torchrun", 3, 4)


def test_the_rendezvous_may_be_given_by_hand() -> None:
    found = discover(SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "77"})
    assert (found.master_addr, found.master_port) == ("head", 77)


@pytest.mark.parametrize(
    ("environ", "axis"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT"),
        (TORCHRUN | {"RANK": "4"}, "RANK"),
        (TORCHRUN | {"RANK": "-1"}, "RANK"),
        (TORCHRUN | {"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        (TORCHRUN | {"MASTER_PORT": "x"}, "MASTER_PORT"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT"),
        (OPENMPI | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"}, "WORLD_SIZE"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "MASTER_ADDR"),
    ],
)
def test_what_is_incomplete_or_contradicts_itself_is_refused(environ: dict[str, str], axis: str) -> None:
    with pytest.raises(WorldError) as caught:
        discover(environ)
    (problem,) = caught.value.problems
    assert problem.axis == axis
    assert problem.why
    assert problem.instead
