"""Who this process is, its device, and its process group: joined once, shared by every session of the process."""

from __future__ import annotations

import atexit
import os
from typing import final

import torch
import torch.distributed as dist
from attrs import frozen

from restoke.configs.rendezvous import Rendezvous
from restoke.errors import WorldError
from restoke.facts import DEVICES, Facts
from restoke.ranks import Ranks, discover
from restoke.settle import settle

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "mps": "gloo", "xpu": "cpu:gloo,xpu:xccl"}
INDEXED = ("cuda", "xpu")  # devices of which a machine has several
_KEPT: list[object] = []  # torch can hang when a gloo group is freed before exit: it lives as long as the process


@final
@frozen(eq=False)
class World:
    """One rank's view of the job. `data_rank` of `data_size` is its share of the data."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    launcher: str | None = None
    tensor: int = 1  # ranks that share each layer, and so the data: neighbours

    @property
    def data_rank(self) -> int:
        return self.rank // self.tensor

    @property
    def data_size(self) -> int:
        return self.size // self.tensor

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that speaks and writes for all."""
        return self.rank == 0

    @property
    def device_ids(self) -> list[int] | None:
        """What DDP is told: this rank's device by its index, or None where devices have none."""
        return [self.device.index] if self.device.type in INDEXED else None

    @classmethod
    def join(cls, device: str, ranks: Ranks, rendezvous: Rendezvous, many: bool, tensor: int = 1) -> World:
        """Take this rank's device and, where `many`, join the process group: an existing one is taken as it is.

        Raises:
            WorldError: the group, the launcher and the settings contradict each other, or the group cannot be made.
        """
        ranks = _agree(ranks, rendezvous)
        own = torch.device(device, _index(device, ranks)) if device in INDEXED else torch.device(device)
        if device in INDEXED:
            torch.accelerator.set_device_index(own.index)
        if many and not dist.is_initialized():
            _init_group(own, ranks, rendezvous)
        return cls(ranks.rank, ranks.size, ranks.local_rank, ranks.local_size, own, ranks.launcher, tensor)


def ranks_here() -> Ranks:
    """As the launcher says; a group that the script made itself counts as a launcher.

    Raises:
        WorldError: the script's group and the launcher's variables contradict each other.
    """
    if not _has_group():
        return discover()
    rank, size = dist.get_rank(), dist.get_world_size()
    found = discover() if "WORLD_SIZE" in os.environ else Ranks()
    if found.launcher is None:
        here = torch.accelerator.current_device_index() if torch.accelerator.is_available() else rank
        return Ranks(rank, size, here, size, "process group")
    if (found.rank, found.size) != (rank, size):
        why = f"the process group says rank {rank} of {size}, the environment rank {found.rank}"
        raise WorldError.of("WORLD_SIZE", found.size, why, "initialise the group from the launcher's variables")
    return found


def facts_here(ranks: Ranks) -> Facts:
    """What torch sees on this machine."""
    cuda = torch.cuda.is_available()
    available = {"cuda": cuda, "xpu": torch.xpu.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    return Facts(
        processes=ranks.size,
        launched=ranks.launcher is not None,
        devices=tuple(name for name in DEVICES if available[name]),
        per_node=ranks.local_size,
        accelerators=torch.accelerator.device_count(),
        capability=torch.cuda.get_device_capability() if cuda else None,
        backends=tuple(name for name, built in backends.items() if built),
    )


def _has_group() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _agree(ranks: Ranks, rendezvous: Rendezvous) -> Ranks:
    wanted = rendezvous.local_rank
    if wanted is None or wanted == ranks.local_rank:
        return ranks
    if ranks.launcher not in (None, "process group"):
        why = f"{ranks.launcher} says {ranks.local_rank}"
        raise WorldError.of("local_rank", wanted, why, "leave it out: the launcher's is used")
    return ranks._replace(local_rank=wanted)


def _index(device: str, ranks: Ranks) -> int:
    """The local rank picks the device; where the launcher shows each process one device only, it is the first."""
    count = torch.accelerator.device_count()
    if ranks.local_rank < count:
        return ranks.local_rank
    if count == 1:
        return 0
    raise WorldError.of("local_rank", ranks.local_rank, f"there are {count} {device} devices", f"--processes {count} per node")


def _init_group(device: torch.device, ranks: Ranks, rendezvous: Rendezvous) -> None:
    os.environ.setdefault("MASTER_ADDR", ranks.master_addr)
    os.environ.setdefault("MASTER_PORT", str(ranks.master_port))
    os.environ.setdefault("LOCAL_RANK", str(ranks.local_rank))
    backend = rendezvous.backend or BACKENDS[device.type]
    try:
        dist.init_process_group(backend, rendezvous.init_method, rank=ranks.rank, world_size=ranks.size)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise WorldError.of(
            "backend", backend, f"no process group at {where} ({first})", "see docs/troubleshooting.md"
        ) from error
    _KEPT.append(dist.group.WORLD)
    atexit.register(settle)  # before `_leave`, and so run after it
    if device.type == "cuda":
        atexit.register(_leave)


def _leave() -> None:
    """NCCL wants its group destroyed before exit; gloo must not be (see `_KEPT`)."""
    if dist.is_initialized():
        dist.destroy_process_group()
