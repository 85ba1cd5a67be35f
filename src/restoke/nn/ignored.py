"""Keeps DistributedDataParallel from averaging what is not the same on its ranks: one rank's shard with another's."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from restoke.errors import SpecError
from restoke.nn.registry import all_shards


def register_ddp_parameters_to_ignore(module: nn.Module) -> list[str]:
    """Tell DistributedDataParallel, which is to wrap this very module, to leave its shards alone, however deep they are.

    Names that the module's list has already stay on it.

    Returns:
        The names of all shards, a tied one by each of its names.

    Raises:
        SpecError: the module was wrapped before, or a part of it was: it would be too late.
    """
    for name, each in module.named_modules():
        if isinstance(each, DistributedDataParallel):
            why = f"{name or 'it'} is wrapped already, and DistributedDataParallel reads the list when it wraps"
            raise SpecError.of("module", type(module).__name__, why, "call it on the module before wrapping it")
    names = list(all_shards(module))
    mine: dict[str, Any] = vars(module)
    # torch calls a parameter of the root itself ".weight" in one place, and "weight" in the others
    roots = [f".{name}" for name in names if "." not in name]
    before = mine.get("_ddp_params_and_buffers_to_ignore", [])
    mine["_ddp_params_and_buffers_to_ignore"] = list(dict.fromkeys([*before, *names, *roots]))
    return names
