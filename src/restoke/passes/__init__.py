"""What is done to a model before a strategy wraps it, in this order."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from restoke.passes.convert import convert
from restoke.spec import Precision

PASSES: tuple[Callable[[nn.Module, Precision], None], ...] = (convert,)


def apply_passes(model: nn.Module, precision: Precision) -> None:
    """Every pass, in order, in place."""
    for one in PASSES:
        one(model, precision)
