"""Names in the order in which people count: layer 2 comes before layer 10."""

from __future__ import annotations

import re

DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """The key to sort by."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in DIGITS.split(name))
