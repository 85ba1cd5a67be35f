"""Names in the order in which people count: layer 2 comes before layer 10."""

from __future__ import annotations

import re

DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """The key to sort by. Numbers are compared as texts of their length: one may have more digits than Python converts."""
    return tuple((0, len(part), part) if part.isdecimal() else (1, 0, part) for part in _parts(name))


def _parts(name: str) -> list[str]:
    return [part.lstrip("0") or "0" if part.isdecimal() else part for part in DIGITS.split(name)]
