"""Kills a save before its n-th file operation: forked from this process, so that each try costs milliseconds."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from restoke.checkpoint.disk import Disk
from restoke.world import World

DEAD = 9
FAILED = 3


def fork_to(work: Callable[[], None]) -> int:
    """The process id of a child that does the work and ends without any clean-up: code 0, or FAILED where it raised."""
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        work()
        code = 0
    finally:
        _end(code)  # a fork of pytest must not get back into pytest


def _end(code: int) -> NoReturn:
    os._exit(code)


def dying(nth: int) -> Disk:
    """A disk that kills its process before the n-th operation, counted from 0."""
    done = [0]

    def before(operation: str, path: Path) -> None:
        if done[0] == nth:
            _end(DEAD)
        done[0] += 1

    return Disk(before)


def code_of(child: int, patience: float = 30) -> int:
    deadline = time.monotonic() + patience
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("a rank hung")
        time.sleep(0.002)


def killed_before(nth: int, save: Callable[[Disk], object]) -> bool:
    """Whether a save by one process has an n-th operation, before which it was killed."""
    code = code_of(fork_to(lambda: save(dying(nth)) and None))
    assert code in (0, DEAD)
    return code == DEAD


def ranks_killed_before(nth: int, victim: int, save: Callable[[World, Disk], object]) -> bool:
    """The same with two ranks, of which one is killed; the other must not hang."""
    with tempfile.TemporaryDirectory() as meeting:

        def rank(own: int) -> None:
            torch.set_num_threads(1)
            dist.init_process_group("gloo", f"file://{meeting}/store", rank=own, world_size=2)
            save(World(own, 2, own, 2, torch.device("cpu")), dying(nth if own == victim else -1))

        children = [fork_to(lambda own=own: rank(own)) for own in range(2)]
        codes = [code_of(child) for child in children]
    assert codes[victim] in (0, DEAD)
    assert codes[1 - victim] in (0, FAILED)
    return codes[victim] == DEAD
