"""What restoke tells the person at the terminal: single lines on stderr."""

from __future__ import annotations

import sys

_SAID: set[str] = set()


def say(line: str) -> None:
    """One line, now."""
    sys.stderr.write(f"restoke: {line}\n")
    sys.stderr.flush()


def say_once(line: str) -> None:
    """One line, once in the life of the process, however many sessions would say it."""
    if line not in _SAID:
        _SAID.add(line)
        say(line)
