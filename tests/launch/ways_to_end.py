"""What each rank of a test job does: `ways_to_end.py CASE [FOLDER]`. Only the cases with a collective import torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RANK = int(os.environ["RANK"])
LONG = 100  # seconds: longer than any test


def talk() -> None:
    sys.stdout.write(f"out of rank {RANK}\n")
    sys.stderr.write(f"error of rank {RANK}\n")


def threads() -> None:
    sys.stdout.write(os.environ["OMP_NUM_THREADS"] + "\n")


def raises() -> None:
    """Rank 1 raises when both have written: whoever has not begun by then is ended before it does."""
    note = Path(sys.argv[2]) / "began"
    sys.stdout.write(f"rank {RANK} began\n")
    if RANK == 0:
        note.touch()
        time.sleep(LONG)
    wait_until(note.exists)
    raise ValueError("the second rank's own fault")


def vanishes() -> None:
    if RANK == 0:
        os._exit(3)
    time.sleep(LONG)


def says_exit() -> None:
    """Rank 1 leaves a process of its own behind."""
    if RANK == 1:
        subprocess.Popen(["sleep", str(LONG)])
        sys.exit("no data here")
    time.sleep(LONG)


def is_killed() -> None:
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONG)


def stops() -> None:
    """Rank 1 is stopped, as by a debugger; rank 0 fails while it is."""
    note = Path(sys.argv[2]) / "pid"
    if RANK == 1:
        note.with_suffix(".part").write_text(str(os.getpid()))
        note.with_suffix(".part").rename(note)
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_until(note.exists)
    wait_until(lambda: Path(f"/proc/{note.read_text()}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    raise ValueError("rank 0 was first")


def is_deaf() -> None:
    """Rank 0 does not hear the agent, and each rank has started a process of its own."""
    note = Path(sys.argv[2]) / "deaf"
    subprocess.Popen(["sleep", str(LONG)])
    if RANK == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note.touch()
        time.sleep(LONG)
    wait_until(note.exists)
    raise ValueError("only rank 1 says so")


def hangs_at_exit() -> None:
    """Rank 1 fails, and its exit handler never returns."""
    import atexit

    from restoke.launch import leave

    leave.LAST_WORDS = 1
    if RANK == 1:
        atexit.register(time.sleep, LONG)
        raise ValueError("before the handler")
    time.sleep(LONG)


def waits() -> None:
    (Path(sys.argv[2]) / f"waits-{RANK}").touch()
    time.sleep(LONG)


def is_stopped() -> None:
    (Path(sys.argv[2]) / f"is_stopped-{RANK}").touch()
    os.kill(os.getpid(), signal.SIGSTOP)


def saves() -> None:
    """As a job does that leaves a checkpoint when it is preempted."""

    def save(number: int, _: object) -> None:
        time.sleep(0.2)
        (Path(sys.argv[2]) / f"saved-{RANK}").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    (Path(sys.argv[2]) / f"saves-{RANK}").touch()
    time.sleep(LONG)


def leaves_early() -> None:
    join()
    if RANK == 1:
        sys.exit(0)
    reduce()


def raises_in_a_collective() -> None:
    join()
    if RANK == 1:
        raise ValueError("not the echo")
    reduce()


def trains() -> None:
    join()
    assert reduce() == 3.0
    sys.stdout.write(f"rank {RANK} has reduced\n")


def join() -> None:
    from restoke.configs.rendezvous import Rendezvous
    from restoke.ranks import discover
    from restoke.world import World

    World.join("cpu", discover(), Rendezvous(), many=True)
    reduce()


def reduce() -> float:
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(total)
    return total.item()


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
