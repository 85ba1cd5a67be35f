"""Starts a job on this machine: one process takes this one's place; several are children of torchrun's agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from restoke.launch.job import Job
from restoke.launch.worker import Orders, command
from restoke.said import say


def start(job: Job) -> int:
    """Run the job to its end and return the exit code. Without an agent the script takes this process over for good.

    Raises:
        LaunchError: the logs cannot be written, or the nodes did not meet.
    """
    if job.outside:
        say(f"starting {', '.join(effective(job))}")
    if not job.agent:
        _become(job)
    from restoke.launch.agent import run

    return run(job)


def effective(job: Job) -> list[str]:
    """What the job runs under, as NAME=VALUE: what differs from the defaults, each `auto` resolved, and its processes."""
    declared = job.spec.declared()
    settings = declared.pop("settings", {})
    return [*_words(declared | {"processes": job.processes}), *_words(settings)]


def _words(values: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{within}{name}.")
        else:
            shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{within}{name}={shown}"


def _become(job: Job) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    environment = os.environ | job.environment | Orders(facade=job.facade, memory=job.memory).environment
    words = command(job.target.words)
    os.execve(words[0], words, environment)
