"""Starts a job on this machine: one process takes this one's place; several are children of torchrun's agent."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from restoke.launch.job import Job
from restoke.launch.worker import Orders, command


def start(job: Job) -> int:
    """Run the job to its end and return the exit code. Without an agent the script takes this process over for good.

    Raises:
        LaunchError: the logs cannot be written, or the nodes did not meet.
    """
    if not job.agent:
        _become(job)
    from restoke.launch.agent import run

    return run(job)


def _become(job: Job) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    environment = os.environ | job.environment | Orders(facade=job.facade, memory=job.memory).environment
    words = command(job.target.words)
    os.execve(words[0], words, environment)
