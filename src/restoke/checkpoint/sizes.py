"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re

from restoke.errors import CheckpointError

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{tail}": base**power for power, prefix in enumerate("KMGT", 1) for tail, base in (("B", 1000), ("iB", 1024))
}
OF_UNIT = {unit.lower(): size for unit, size in UNITS.items()}
WRITTEN = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})\s*")


def parse_size(size: int | str, axis: str) -> int:
    """Bytes of `5GB` (1000 to a step), `5GiB` (1024 to a step) or a plain number. Raises CheckpointError."""
    found = WRITTEN.fullmatch(str(size))
    unit = OF_UNIT.get(found[2].lower()) if found else None
    parsed = int(float(found[1]) * unit) if found and unit and not isinstance(size, bool) else 0
    if parsed < 1:
        raise CheckpointError.of(axis, size, "it is no size in bytes", "such as 5GB, 500MB or 2GiB")
    return parsed


def shown_size(size: int) -> str:
    """Such as `1.23 GB`: three digits, 1000 to a step."""
    value, unit = float(size), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.3g} {unit}"
