"""Functions in forked processes, all at once, in bounded time: how each ended and what it returned."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any, NoReturn, final

from attrs import frozen

RAISED = 3


@final
@frozen
class End:
    """`code` is as `subprocess` gives it: negative for a signal. `error` is a traceback, `kind` the exception's class."""

    code: int
    value: Any = None
    kind: str = ""
    error: str = ""
    hung: bool = False  # it had to be killed

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL and not self.hung


def die() -> NoReturn:
    """As SIGKILL ends a process: no clean-up, nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def in_forks(jobs: Sequence[Callable[[], Any]], patience: float = 20) -> list[End]:
    """Each job in a process of its own, forked from this one. Those that have not ended in time are killed."""
    with contextlib.ExitStack() as open_files:
        files = [open_files.enter_context(tempfile.TemporaryFile()) for _ in jobs]
        children = [_fork(job, file) for job, file in zip(jobs, files, strict=True)]
        deadline = time.monotonic() + patience
        codes = [_code(child, deadline) for child in children]
        return [_end(code, hung, file) for (code, hung), file in zip(codes, files, strict=True)]


def in_ranks(size: int, job: Callable[[Any], Any], patience: float = 20) -> list[End]:
    """`job(world)` on each rank of a world of its own, over gloo."""
    return in_worlds(size, [job], patience)[0]


def in_worlds(size: int, jobs: Sequence[Callable[[Any], Any]], patience: float = 20) -> list[list[End]]:
    """The same with a world for each job, all at once."""
    with tempfile.TemporaryDirectory() as meetings:
        ranks = [partial(_join, rank, size, f"{meetings}/{i}", job) for i, job in enumerate(jobs) for rank in range(size)]
        ends = in_forks(ranks, patience)
    return [ends[i : i + size] for i in range(0, len(ends), size)]


def alone() -> Any:
    import torch

    from restoke.world import World

    return World(0, 1, 0, 1, torch.device("cpu"))


def _join(rank: int, size: int, meeting: str, job: Callable[[Any], Any]) -> Any:
    if size == 1:
        return job(alone())

    import torch
    import torch.distributed as dist

    from restoke.world import World

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=size)
    return job(World(rank, size, rank, size, torch.device("cpu")))


def _fork(job: Callable[[], Any], file: IO[bytes]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = RAISED
    try:
        answer = _answer(job)
        code = RAISED if answer[1] else 0
        file.write(pickle.dumps(answer))
        file.flush()
    finally:
        os._exit(code)  # without clean-up: a fork must not get back into the program that it was forked from


def _answer(job: Callable[[], Any]) -> tuple[Any, str, str]:
    try:
        return job(), "", ""
    except BaseException as error:
        return None, type(error).__name__, traceback.format_exc()


def _code(child: int, deadline: float) -> tuple[int, bool]:
    handle = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        hung = not poll.poll(max(0, deadline - time.monotonic()) * 1000)
        if hung:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), hung
    finally:
        os.close(handle)


def _end(code: int, hung: bool, file: IO[bytes]) -> End:
    file.seek(0)
    data = file.read()
    value, kind, error = pickle.loads(data) if data and code in (0, RAISED) else (None, "", "")
    return End(code, value, kind, error, hung)
