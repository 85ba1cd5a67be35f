"""Several processes, as children of torchrun's own elastic agent; the exit code and the message are ours."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from restoke.errors import LaunchError, RestokeError
from restoke.launch.blame import all_stopped, verdict
from restoke.launch.job import Job
from restoke.launch.logs import new_folder
from restoke.launch.measured import shown
from restoke.launch.records import log_of
from restoke.launch.report import report
from restoke.launch.requests import AGENTS, ENDING, Requests
from restoke.launch.screen import Screen
from restoke.launch.watch import PATIENCE, End, Watch
from restoke.launch.worker import Orders, command
from restoke.stopped import RESUME

HANDLED = (*ENDING, AGENTS, signal.SIGUSR1)


@final
class Logs(LogsSpecs):
    """Where torch's `@record` leaves its own file; the ranks' output goes where `restoke.launch.worker` sends it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(log_dir=str(folder))
        self._folder = folder

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files = {local: str(self._folder / f"rank-{env['RANK']}.torch.json") for local, env in envs.items()}
        for local, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = files[local]
        streams = dict.fromkeys(envs, "")
        return LogsDest(stdouts=streams, stderrs=streams, error_files=files)

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)


def run(job: Job) -> int:
    """Start this node's share of the job, wait for its end, say what happened, and return the exit code.

    Raises:
        LaunchError: the logs cannot be written, or the nodes did not meet.
    """
    folder = new_folder(job.logs).resolve()
    first = job.nodes.rank * job.per_node
    watch = Watch(folder, range(first, first + job.per_node), job.grace)
    with _restored(), tempfile.TemporaryDirectory(prefix="restoke-") as pipes:
        os.environ.update(job.environment)
        _share_cores(job)
        with Screen(log_of(folder, first), Path(pipes)) as screen, watch:
            orders = Orders(parent=os.getpid(), folder=str(folder), screen=screen.paths, facade=job.facade, memory=job.memory)
            os.environ.update(orders.environment)
            Requests().take()
            codes, signalled = _launched(job, folder, watch)
    code = _told(job, folder, watch.ends(codes), signalled)
    if job.memory:
        sys.stderr.write(shown(folder, range(first, first + job.per_node)))
    return code


def _told(job: Job, folder: Path, ends: Sequence[End], signalled: int) -> int:
    """The exit code, after what there is to say of it."""
    if all_stopped(ends):
        return _resume(ends, job.nodes.rank * job.per_node)
    if signalled:
        sys.stderr.write(f"restoke: stopped by {signal.Signals(signalled).name}\n")
        return 128 + signalled
    found = verdict(ends)
    if found is None:
        return 0
    sys.stderr.write(report(found, folder, job.nodes.count))
    return found.code


def _resume(ends: Sequence[End], first: int) -> int:
    """The exit code of a job that was asked to stop, and did. The main rank has said so, but on its own node's screen alone."""
    record = ends[0].record
    if first > 0 and record is not None:
        sys.stderr.write(f"restoke: {record.error}\n")
    return RESUME


def _launched(job: Job, folder: Path, watch: Watch) -> tuple[dict[int, int], int]:
    """The exit codes of the ranks that failed, as far as the agent knows them, and the signal that ended the job, or 0."""
    words = [word.replace("$", "$$") for word in command(job.target.words, "-u")]  # the agent expands ${local_rank}
    try:
        launch_agent(_config(job, folder), words[0], words[1:])
    except ChildFailedError as error:
        watch.kill()
        return {rank: failure.exitcode for rank, failure in error.failures.items()}, 0
    except SignalException as error:
        watch.kill()
        return {}, error.sigval
    except KeyboardInterrupt:
        watch.kill()
        return {}, signal.SIGINT
    except (RuntimeError, OSError) as error:
        watch.kill()
        raise _not_met(job, error) from error
    return {}, 0


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """The agent takes signal handlers, and passes on this process's environment: both are given back. It says nothing."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    logger, silence = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    propagated, logger.propagate = logger.propagate, False  # it would name a rank too, and not always the right one
    logger.addHandler(silence)
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(silence)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)


def _not_met(job: Job, error: Exception) -> RestokeError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    where = job.nodes.endpoint or "this machine"
    return LaunchError.of(
        "rdzv-endpoint", where, f"the processes could not meet there ({said})", "another HOST:PORT, alike on each node"
    )


def _config(job: Job, folder: Path) -> LaunchConfig:
    alone = job.nodes.count == 1
    meeting: dict[str, Any] = {} if alone else {"rank": job.nodes.rank}
    return LaunchConfig(
        min_nodes=job.nodes.count,
        max_nodes=job.nodes.count,
        nproc_per_node=job.per_node,
        run_id=uuid.uuid4().hex if alone else job.nodes.endpoint,
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint="127.0.0.1:0" if alone else job.nodes.endpoint,
        rdzv_configs=meeting,
        local_addr="127.0.0.1" if alone else None,
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=math.ceil(max(job.grace, *PATIENCE.values())),
        signals_to_handle=AGENTS.name,
        logs_specs=Logs(folder),
    )


def _share_cores(job: Job) -> None:
    """Threads per process so that all of them together fill the cores, unless the user has chosen."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    share = max(1, cores // job.per_node)
    os.environ["OMP_NUM_THREADS"] = str(share)
    ranks = f"{job.per_node} {'process' if job.per_node == 1 else 'processes'}"
    sys.stderr.write(f"restoke: OMP_NUM_THREADS={share} ({cores} cores, {ranks}); set it to choose\n")
