"""The `restoke` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default this process's own, and return its exit code."""
    from restoke.cli.app import run

    return run(sys.argv[1:] if arguments is None else arguments)
