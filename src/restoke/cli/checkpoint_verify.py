"""`restoke checkpoint verify`: every checksum, with progress on a terminal, and the damaged files by name."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from restoke.checkpoint.places import placed
from restoke.checkpoint.sizes import shown_size
from restoke.checkpoint.verifying import Verdict, to_read, unfinished, verified
from restoke.cli.checkpoint_json import verdicts
from restoke.cli.checkpoint_tables import console, escape

DAMAGED = 1


def bar() -> Progress:
    """On stderr, and only where that is a terminal."""
    err = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


def run(path: Path, tag: str | None, json: bool) -> int:
    """Print a verdict on each; 0 where all are good."""
    out = console()
    found: list[Verdict] = []
    with bar() as progress:
        task = progress.add_task("verifying", total=to_read(path, tag))
        for verdict in verified(path, tag, lambda name, read: progress.update(task, advance=read, description=escape(name))):
            found.append(verdict)
            if not json:
                for line in _lines(verdict):
                    out.print(line)
    left = unfinished(path)
    if json:
        sys.stdout.write(verdicts(placed(path, tag)[0], found, left))
    else:
        for name in left:
            out.print(f"{escape(name)}: a save is at work there, or died at it; the next one removes what is left")
    return DAMAGED if any(verdict.faults for verdict in found) else 0


def _lines(verdict: Verdict) -> list[str]:
    tag = escape(verdict.tag)
    if verdict.faults:
        return [f"{tag}: [red]DAMAGED[/red]: {escape(fault)}" for fault in verdict.faults]
    files = f"{verdict.files} file{'s' if verdict.files > 1 else ''}"
    return [f"{tag}: good (generation {verdict.generation}, {files}, {shown_size(verdict.bytes)})"]
