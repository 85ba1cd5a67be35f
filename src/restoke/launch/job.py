"""What is to be started, as a value: every way of launching reads it and none changes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from restoke.spec import ENVIRONMENT, Spec

LOGS = Path(".restoke/logs")
GRACE = 120.0  # seconds, for a step and a checkpoint


@frozen
class Target:
    """A script by its path or a module by its dotted name, and the arguments that are its own."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def words(self) -> list[str]:
        """As they follow `python` on a command line."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]


@frozen(kw_only=True)
class Nodes:
    """How many machines the job runs on, which of them this is, and the HOST:PORT where they meet."""

    count: int = 1
    rank: int = 0
    endpoint: str = ""


@frozen(kw_only=True)
class Job:
    """`spec` is what was declared, with each `auto` resolved; `outside` the same as the ranks are told it.

    `processes` counts those of all nodes. `agent` says whether torchrun's agent starts them; without it there is one process,
    which has no ranks. `facade` is the library whose name the script imports. `grace` is how many seconds ranks have after a
    signal that have promised to save and leave.
    """

    target: Target
    spec: Spec
    processes: int = 1
    agent: bool = False
    outside: Mapping[str, Any] = {}
    nodes: Nodes = Nodes()
    facade: str | None = None
    logs: Path = LOGS
    memory: bool = False  # whether it is measured
    grace: float = GRACE

    @property
    def per_node(self) -> int:
        return self.processes // self.nodes.count

    @property
    def environment(self) -> dict[str, str]:
        """The one variable that every session reads; none where nothing was declared."""
        return {ENVIRONMENT: json.dumps(dict(self.outside), default=str)} if self.outside else {}
