"""What is known about the place where a spec is to run, as values; `restoke.world` and the launcher fill them in."""

from __future__ import annotations

import importlib.util

from attrs import field, frozen

DEVICES = ("cuda", "xpu", "mps", "cpu")  # in the order that `device=auto` prefers


@frozen(kw_only=True)
class Facts:
    """`processes` is how many were, or are to be, started; `launched` whether a launcher did it."""

    processes: int = 1
    launched: bool = False
    devices: tuple[str, ...] = ("cpu",)
    per_node: int = 1  # processes on this machine
    accelerators: int = 0  # devices of the best kind on this machine
    capability: tuple[int, int] | None = None  # of the first CUDA device
    backends: tuple[str, ...] = field(default=("gloo",))  # process-group backends that torch was built with


def installed(module: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
