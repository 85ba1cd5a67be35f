"""Runs TorchShard's kind of script on the pool's ranks, under its own name, and brings back what it printed."""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from restoke import said
from restoke.configs.rendezvous import Rendezvous
from restoke.facades import torchshard as ts
from restoke.launch.alias import Alias
from restoke.ranks import discover
from restoke.world import World
from tests import ranks

SCRIPTS = Path(__file__).with_name("scripts")


def joined(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)` in a process group, without groups of TorchShard's before and after."""
    World.join("cpu", discover(), Rendezvous(), many=True)
    ts.distributed.destroy_process_group()
    said._SAID.clear()
    try:
        return fn(*args)
    finally:
        ts.distributed.destroy_process_group()


def run(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """`fn(*args)` on every rank of n; what they returned, in order."""
    return ranks.run(n, joined, fn, *args)


def script(n: int, name: str, *words: object) -> list[tuple[str, str]]:
    """What each rank printed, and said on stderr."""
    return run(n, _script, name, [str(word) for word in words])


def _script(name: str, words: list[str]) -> tuple[str, str]:
    finder, path = Alias(ts.MODULES), str(SCRIPTS / f"{name}.py")
    out, err = io.StringIO(), io.StringIO()
    sys.meta_path.insert(0, finder)
    try:
        with (
            patch.object(sys, "argv", [path, *words]),
            patch.object(dist, "init_process_group"),  # the pool's ranks have joined theirs
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            runpy.run_path(path, run_name="__main__")
    finally:
        sys.meta_path.remove(finder)
        for module in [module for module in sys.modules if module.split(".")[0] == "torchshard"]:
            del sys.modules[module]
    return out.getvalue(), err.getvalue()
