"""Runs an example as a user would: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FEW = ("--samples", 320, "--epochs", 2)  # of digits
LOSS, ACCURACY = "training loss: ", "test accuracy "


@frozen
class Ran:
    """What a run printed, and the folder that it ran in."""

    text: str
    folder: Path

    def numbers(self, after: str) -> list[float]:
        """Every number that follows these words."""
        return [float(found) for found in re.findall(re.escape(after) + r"\s*(\d+(?:\.\d+)?)", self.text)]


def run(folder: Path, *words: object, path: Path | None = None) -> Ran:
    """The interpreter with these arguments, in `folder`; what is in `path` is installed. It must end well."""
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    command = [sys.executable, *map(str, words)]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout}\n{ran.stderr}"
    return Ran(ran.stdout, folder)


def launch(folder: Path, spec: str, script: str, *arguments: object, path: Path | None = None) -> Ran:
    """`restoke launch --spec`, of a spec file beside the digits where it is a name alone."""
    file = EXAMPLES / spec if "/" in spec else EXAMPLES / "digits" / f"{spec}.yaml"
    return run(folder, "-m", "restoke.cli", "launch", "--spec", file, EXAMPLES / script, *arguments, path=path)
