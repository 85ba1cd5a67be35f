"""Which rank failed first: the one whose end is not the consequence of another's."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from attrs import frozen

from restoke.launch.watch import End

# How gloo, NCCL and the store say that it was another rank that went away.
COLLATERAL = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "timeout caused pair closure",
    "failed to recv, got 0 bytes",
    "recvValue failed",
    "wait timeout after",
    "remote process exited",
    "NCCL communicator was aborted",
    "ncclRemoteError",
)


@frozen
class Verdict:
    """`first` failed first; `after` are the other failures in order; `left` had finished, and `first` waited for it."""

    first: End
    after: tuple[End, ...] = ()
    left: End | None = None

    @property
    def named(self) -> End:
        """The rank to look at."""
        return self.left or self.first

    @property
    def code(self) -> int:
        """What the launcher exits with: the rank's own exit code, or 128 + the number of the signal that ended it."""
        code = exit_code(self.first)
        return 128 - code if code < 0 else code or 1


def verdict(ends: Sequence[End]) -> Verdict | None:
    """None where no rank failed.

    A failure that is the echo of another's comes after every other one. Among equals the time decides: of an exception when it
    was raised, of a process that vanished the last time it was seen alive. An abort may itself be an echo, from a thread of
    gloo's: it counts from when it was seen gone.
    """
    failures = [end for end in ends if _failed(end)]
    if not failures:
        return None
    first, *after = sorted(failures, key=lambda end: (_weight(end, failures), _at(end)))
    early = [end for end in ends if _finished(end) and _at(end) < _at(first)]
    left = min(early, key=_at) if early and is_echo(first) else None
    return Verdict(first, tuple(end for end in after if is_echo(first) or not _terminated(end)), left)


def _weight(end: End, failed: Sequence[End]) -> int:
    """0: a cause; 1: an echo; 2: told to end, by the agent after a failure unless everyone who failed was there still."""
    if _terminated(end):
        return 0 if all(other.alive_ns > end.gone_ns for other in failed if other is not end) else 2
    return int(is_echo(end))


def exit_code(end: End) -> int:
    """What the process ended with, as far as anybody knows."""
    if end.code is not None and not end.killed:
        return end.code
    return end.record.code if end.record is not None else 0


def is_echo(end: End) -> bool:
    """Whether the error, or one that caused it, says that another rank was gone already."""
    said = end.record.chain if end.record is not None else ()
    return any(phrase in each for each in said for phrase in COLLATERAL)


def all_stopped(ends: Sequence[End]) -> bool:
    """Whether every rank has saved and left, as it was asked to."""
    return all(map(_stopped, ends))


def _stopped(end: End) -> bool:
    return end.record is not None and end.record.phase == "stopped"


def _failed(end: End) -> bool:
    if _stopped(end):
        return False  # however its process came to its end then
    return exit_code(end) != 0 or (end.record is not None and end.record.phase == "failed")


def _terminated(end: End) -> bool:
    return exit_code(end) == -signal.SIGTERM and (end.record is None or end.record.phase != "failed")


def _finished(end: End) -> bool:
    by_itself = end.record is not None and end.record.phase == "finished"
    return by_itself or (end.code == 0 and not end.killed)


def _at(end: End) -> int:
    if end.record is not None and end.record.phase != "running":
        return end.record.monotonic_ns
    return end.gone_ns if exit_code(end) == -signal.SIGABRT else end.alive_ns
