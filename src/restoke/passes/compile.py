"""torch.compile in place: of each block, or of the whole model. Names stay, and hooks stay outside of what is compiled."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, final

import torch
from torch import nn

from restoke.blocks import find_blocks
from restoke.errors import SpecError
from restoke.spec import Spec
from restoke.world import World


def compile_(model: nn.Module, spec: Spec, world: World) -> None:
    """The forward of each block, or of the model, is replaced by its compiled self; it is compiled when it first runs.

    Raises:
        SpecError: the model has no blocks, is compiled already, or nothing here can compile.
    """
    if spec.compile == "none":
        return
    if any(name == "_orig_mod" for name, _ in model.named_children()):
        raise SpecError.of("compile", spec.compile, "the model was compiled before", "hand over the model itself")
    _need_a_compiler(spec, world)
    targets = [("", model)] if spec.compile == "model" else find_blocks(model, spec.blocks)
    if not targets:
        why = "no kind of layer repeats in the model, so there are no blocks to compile"
        raise SpecError.of("compile", spec.compile, why, "compile=model, or blocks= with patterns of module names")
    for _, module in targets:
        module.forward = Compiled(module.forward)


@final
class Compiled:
    """A compiled forward. An object, not a function: in a deep copy of the model it is the copy's forward."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._run = torch.compile(forward)
        update_wrapper(self, forward)  # its signature stays

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Compiled, (self._forward,)


def _need_a_compiler(spec: Spec, world: World) -> None:
    """What is compiled for a CPU is C++."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if world.device.type == "cpu" and shutil.which(name) is None:
        why = f"on a CPU torch needs a C++ compiler, and there is no {name}"
        raise SpecError.of("compile", spec.compile, why, f"install {name} (or name another one in CXX), or compile=none")
