"""Starts a function in several processes from a notebook or a test."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from restoke.errors import LaunchError
from restoke.facades.accelerate.declare import precision_of
from restoke.facades.accelerate.state import AcceleratorState, GradientState, PartialState
from restoke.spec import ENVIRONMENT, outside_spec


def notebook_launcher(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int | None = None,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    **unknown: Any,
) -> None:
    """Run the function in so many forked processes: by default one for each accelerator, else one.

    Raises:
        LaunchError: the processes cannot be forked any more, more machines than one are asked for, or one of them failed.
    """
    if num_nodes != 1 or node_rank or unknown:
        name = next(iter(unknown), "num_nodes")
        why = "this starts processes of this machine alone"
        raise LaunchError.of(name, unknown.get(name, num_nodes), why, "restoke launch --nodes")
    count = num_processes or max(torch.accelerator.device_count(), 1)
    declared = {} if mixed_precision == "no" else {"precision": precision_of(mixed_precision)}
    if count == 1:
        function(*args)
        return
    if torch.accelerator.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        why = "CUDA is in use in this process, and cannot be forked with it"
        raise LaunchError.of("num_processes", count, why, "restart, and make models and tensors in the function alone")
    _start(function, args, count, declared, (master_addr, str(use_port or 0)))


def debug_launcher(function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int = 2) -> None:
    """Run the function in so many forked processes on the CPU.

    Raises:
        LaunchError: the processes cannot be forked, or one of them failed.
    """
    _start(function, args, num_processes, {"device": "cpu"}, ("127.0.0.1", "0"))


def _start(
    function: Callable[..., Any], args: tuple[Any, ...], count: int, declared: Mapping[str, Any], where: tuple[str, str]
) -> None:
    if (dist.is_available() and dist.is_initialized()) or "RANK" in os.environ:
        why = "this process is one of several already"
        raise LaunchError.of("num_processes", count, why, "call the function itself")
    if sys.platform == "win32":
        raise LaunchError.of("num_processes", count, "Windows forks no processes", "restoke launch --processes N script.py")
    address, port = where
    outside = json.dumps({**outside_spec(), **declared})
    start: Any = start_processes
    start(_run, (function, args, count, address, int(port) or _free_port(), outside), nprocs=count, start_method="fork")


def _run(
    rank: int, function: Callable[..., Any], args: tuple[Any, ...], count: int, address: str, port: int, spec: str
) -> None:
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in here.items()})
    os.environ.update({"MASTER_ADDR": address, "MASTER_PORT": str(port), ENVIRONMENT: spec})
    torch.set_num_threads(max(torch.get_num_threads() // count, 1))
    for state in (PartialState, AcceleratorState, GradientState):
        state._reset_state()
    function(*args)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
