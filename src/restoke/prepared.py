"""Who is told of each session when its parts are made: what measures a script from outside, layers that follow an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TOLD: list[Callable[[Any], None]] = []
