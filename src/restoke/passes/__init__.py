"""What is done to a model before a strategy wraps it, in this order."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from restoke.passes.compile import compile_
from restoke.passes.convert import convert
from restoke.passes.float8 import float8
from restoke.passes.remat import remat
from restoke.passes.tensor import tensor
from restoke.spec import Precision, Spec
from restoke.world import World

Pass = Callable[[nn.Module, Spec, World, Precision], None]  # in place: names and types stay


def _convert(model: nn.Module, spec: Spec, world: World, precision: Precision) -> None:
    convert(model, precision)


def _tensor(model: nn.Module, spec: Spec, world: World, precision: Precision) -> None:
    tensor(model, spec, world)


def _float8(model: nn.Module, spec: Spec, world: World, precision: Precision) -> None:
    float8(model, precision, world)


def _remat(model: nn.Module, spec: Spec, world: World, precision: Precision) -> None:
    remat(model, spec)


def _compile(model: nn.Module, spec: Spec, world: World, precision: Precision) -> None:
    compile_(model, spec, world)


PASSES: tuple[Pass, ...] = (_convert, _tensor, _float8, _remat, _compile)


def apply_passes(model: nn.Module, spec: Spec, world: World, precision: Precision) -> None:
    """Every pass, in order, in place."""
    for one in PASSES:
        one(model, spec, world, precision)
