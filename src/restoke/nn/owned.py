"""How a layer takes on the parameters of which it holds parts, and tells of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.registry import KEY, register_shard
from restoke.nn.tags import SAID


def counted(name: str, size: int) -> int:
    """The size, if it is a positive whole number. Raises SpecError where it is not."""
    if type(size) is not int or size < 1:
        raise SpecError.of(name, size, "a layer has one of them at least", "1 or more")
    return size


def empty_part(whole: tuple[int, ...], shard: Shard | None, **made: Any) -> Tensor:
    """Memory for this rank's part."""
    shape = list(whole)
    if shard is not None:
        shape[shard.dim] = shard.length
    return torch.empty(shape, **made)


def adopt(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
    """Make the parameter the layer's, and say which part it is: the layer's `shards` and `dim` know."""
    module.register_parameter(name, param)
    register_shard(module, name, vars(module)["shards"][name])
    say_of(module)


def say_of(module: nn.Module) -> None:
    """Let a layer's parameters tell the dimension that it was given. After a copy they are new, and are told again."""
    for name in vars(module).get(KEY, {}):
        param = module._parameters[name]
        if param is not None:
            vars(param)[SAID] = None if vars(module)["shards"][name] is None else vars(module)["dim"]
