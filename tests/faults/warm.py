"""A process that has imported torch and runs nothing: what it forks starts in milliseconds and inherits no threads."""

from __future__ import annotations

import atexit
import gc
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from restoke.testing import ranks  # its server of forks is ours too: torch is imported once for both

_PARENT: list[Any] = []  # the process and our end of the connection to it


def call(function: Callable[..., Any], *args: Any, patience: float = 110) -> Any:
    """`function(*args)` in the warm process. It must be importable, and leave to forks whatever runs torch.

    Raises:
        AssertionError: it raised, or did not answer in time.
    """
    if not _PARENT or not _PARENT[0].is_alive():
        _PARENT[:] = _start()
    process, connection = _PARENT
    connection.send((function, args))
    if not connection.poll(patience):
        process.kill()
        raise AssertionError(f"{function.__name__} did not answer in {patience:.0f} s")
    value, error = connection.recv()
    assert not error, error
    return value


def _start() -> tuple[Any, Connection]:
    context = ranks._CONTEXT
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    atexit.register(process.kill)
    return process, here


def _serve(connection: Connection) -> None:
    import torch

    import restoke.checkpoint.opening
    import restoke.checkpoint.saving  # noqa: F401 - for the forks

    torch.set_num_threads(1)
    gc.freeze()  # else each fork copies what its first collection looks at
    while True:
        function, args = connection.recv()
        try:
            answer = function(*args), ""
        except BaseException:
            answer = None, traceback.format_exc()
        connection.send(answer)
