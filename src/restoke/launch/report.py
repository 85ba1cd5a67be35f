"""What the launcher says when a job fails: who failed first and how, then its traceback, then where to read more."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from restoke.launch.blame import Verdict, exit_code, is_echo
from restoke.launch.records import log_of
from restoke.launch.watch import End

WIDTH = 160  # characters of an error in a line of its own; the traceback has all of it
SOURCE = re.compile(r"\[/[^\]]*\] ")  # gloo begins with its own file and line
TAIL = 30  # lines of the rank's log
TAIL_BYTES = 1 << 16


def report(found: Verdict, folder: Path, nodes: int = 1) -> str:
    """Its first line names the rank that failed first, and its error."""
    named = found.named
    lines = [f"restoke: {_headline(found)}"]
    if found.first.record is not None and found.first.record.traceback:
        lines.append(found.first.record.traceback.rstrip())
    lines += [f"Then rank {end.rank} failed: {how(end)}" for end in found.after]
    if nodes > 1 and is_echo(found.first) and found.left is None:
        lines.append("This error says that another rank was gone: the first to fail may be on another node.")
    lines += _tail(named, folder)
    return "\n".join([*lines, f"Output of every rank: {folder}/rank-*.log"]) + "\n"


def _headline(found: Verdict) -> str:
    if found.left is None:
        return f"rank {found.first.rank} failed first: {how(found.first)}"
    waiting = f"while rank {found.first.rank} still waited for it, which then failed: {how(found.first)}"
    return f"rank {found.left.rank} finished (exit code 0) {waiting}"


def how(end: End) -> str:
    """How a rank ended."""
    if end.record is not None and end.record.phase == "failed":
        error = SOURCE.sub("", end.record.error)
        return error if len(error) <= WIDTH else f"{error[: WIDTH - 3]}..."
    code = exit_code(end)
    if code < 0:
        return f"it was killed by {_signal_name(-code)}"
    return f"it exited with code {code}, {'without an exception' if end.record is not None else 'before its script began'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(end: End, folder: Path) -> list[str]:
    """What the rank wrote last, without the traceback that stands above. The main rank's output was on the screen already."""
    log = log_of(folder, end.rank)
    if end.rank == 0 or not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    if end.record is not None and end.record.traceback:
        text = text.replace(f"[rank{end.rank}]: ", "").replace(end.record.traceback, "")  # torch's own prefix
    last = text.rstrip().splitlines()[-TAIL:]
    return [f"Last output of rank {end.rank}:", *(f"  {line}" for line in last)] if last else []
