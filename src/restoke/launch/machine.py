"""What this machine has, asked of torch only where there is a device that torch could know more about."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs

from restoke.errors import LaunchError
from restoke.facts import Facts
from restoke.ranks import Ranks

DEVICE_FILES = ("nvidiactl", "nvidia0", "nvhost-gpu", "dxg", "kfd")  # NVIDIA, Tegra, Windows' Linux, AMD
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")  # what torch may have been built with: the ranks find out


def machine(device: str, torch_comes: bool = False) -> Facts:
    """The facts for a job on `device`. Importing torch takes seconds, so it is asked where an accelerator can be meant.

    `torch_comes` says that this process will import torch anyway; otherwise a child is asked.

    Raises:
        LaunchError: torch cannot be imported.
    """
    if device == "cpu" or not accelerated():
        return Facts(backends=BACKENDS)
    return asked_here() if torch_comes else asked_of_a_child()


def accelerated(devices: Path = Path("/dev")) -> bool:
    """Whether torch might see anything but the CPU here."""
    try:
        build = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        build = ""
    if build.endswith("+cpu"):
        return False
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return "+xpu" in build or any((devices / name).exists() for name in DEVICE_FILES)


def asked_here() -> Facts:
    """What torch says in this process."""
    from restoke.world import facts_here

    return facts_here(Ranks())


def asked_of_a_child() -> Facts:
    """What torch says in a process of its own. Raises LaunchError, with what that process wrote last."""
    command = [sys.executable, "-P", "-m", "restoke.launch.machine"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        raise LaunchError.of("device", "auto", f"torch could not be asked ({last})", "repair torch, or --device cpu")
    return facts_from(json.loads(answer.stdout))


def facts_from(plain: dict[str, Any]) -> Facts:
    """Facts out of JSON, where tuples were lists."""
    told: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Facts(**told)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attrs.asdict(asked_here())))
