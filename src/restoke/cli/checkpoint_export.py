"""`restoke checkpoint export`: the weights for other programs, with progress on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from restoke.checkpoint.exporting import export
from restoke.checkpoint.sizes import shown_size
from restoke.cli.checkpoint_json import exported
from restoke.cli.checkpoint_verify import bar
from restoke.said import say


def run(path: Path, out: Path, json: bool, **options: Any) -> int:
    """Export, and say what was written where."""
    with bar() as progress:
        task = progress.add_task("exporting", total=None)
        done = export(path, out, progress=lambda written, of: progress.update(task, advance=written, total=of), **options)
    for note in done.notes:
        say(note)
    if json:
        sys.stdout.write(exported(done))
        return 0
    files = f"{len(done.files)} file{'s' if len(done.files) > 1 else ''}"
    sys.stdout.write(f"{done.tensors} tensors, {shown_size(done.bytes)}, in {files}:\n")
    sys.stdout.writelines(f"  {file}\n" for file in done.files)
    return 0
