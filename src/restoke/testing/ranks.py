"""Runs a function in N real processes that talk over gloo, and brings back what each rank returned.

The processes are forked from a server that has imported torch, and kept for the whole run with their process group, which is
never destroyed (torch can hang when a gloo group is freed). After a failure a pool is thrown away, since ranks may be stuck.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing as mp
import os
import queue
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed"])
_POOLS: dict[int, _Pool] = {}


class RankError(AssertionError):
    """A rank raised, or did not answer in time."""


def run(n: int, fn: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Any]:
    """`fn(*args)` on every rank of a world of n, as torchrun would start it; the values that the ranks returned, in order.

    `fn` must be importable (a module's top level); arguments and values are pickled.
    """
    pool = _POOLS.get(n)
    if pool is None or not pool.alive():
        pool = _POOLS[n] = _Pool(n)
    try:
        return pool(fn, args, timeout)
    except BaseException:
        _POOLS.pop(n).kill()
        raise


class _Pool:
    def __init__(self, n: int) -> None:
        self._tasks = [_CONTEXT.Queue() for _ in range(n)]
        self._results = _CONTEXT.Queue()
        port = _free_port()
        self._processes = [
            _CONTEXT.Process(target=_serve, args=(rank, n, port, tasks, self._results), daemon=True)
            for rank, tasks in enumerate(self._tasks)
        ]
        for process in self._processes:
            process.start()

    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def __call__(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> list[Any]:
        for tasks in self._tasks:
            tasks.put((fn, args))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        while len(answers) < len(self._tasks):
            try:
                rank, value, error = self._results.get(timeout=0.2)
            except queue.Empty:
                self._check(answers, deadline)
                continue
            if error is not None:
                raise RankError(f"rank {rank}:\n{error}")
            answers[rank] = value
        return [answers[rank] for rank in range(len(self._tasks))]

    def _check(self, answers: dict[int, Any], deadline: float) -> None:
        silent = [rank for rank in range(len(self._tasks)) if rank not in answers]
        dead = [rank for rank in silent if not self._processes[rank].is_alive()]
        if dead:
            raise RankError(f"rank {dead[0]} died with exit code {self._processes[dead[0]].exitcode}")
        if time.monotonic() > deadline:
            raise RankError(f"ranks {silent} did not answer in time")


def _serve(rank: int, n: int, port: int, tasks: Any, results: Any) -> None:
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # what torch's import left is not looked through after each function
    here = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": n,
        "LOCAL_WORLD_SIZE": n,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in here.items()})
    while True:
        fn, args = tasks.get()
        torch.manual_seed(0)
        value = error = None
        try:
            value = fn(*args)
        except Exception:  # noqa: BLE001 (whatever a test raises is brought back)
            error = traceback.format_exc()
        gc.collect()
        results.put((rank, value, error))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@atexit.register
def _kill_all() -> None:
    for pool in _POOLS.values():
        pool.kill()
