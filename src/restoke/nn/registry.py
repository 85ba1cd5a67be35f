"""Which parameters of a model are one rank's shards: layers say so when they are built, and whoever trains them asks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from restoke.distributed.shards import Shard
from restoke.errors import SpecError

KEY = "_restoke_shards"  # in a module's own dict, so that it is copied with the module, and outlives a new Parameter
MARK = "restoke_shard"  # on a parameter that belongs to no layer of ours


def register_shard(module: nn.Module, name: str, shard: Shard | None) -> None:
    """Say that the module's own parameter or buffer of this name is this shard; None: that it is whole.

    Raises:
        SpecError: the module has none of this name, or one of another length.
    """
    own: dict[str, Any] = {**module._parameters, **module._buffers}
    if name not in own:
        why = f"{type(module).__name__} has no parameter or buffer of its own by this name"
        raise SpecError.of("name", name, why, "its name")
    tensor = own[name]
    if shard is not None and tensor is not None and tensor.shape[shard.dim] != shard.length:
        why = f"rank {shard.group.rank} of {shard.group.size} holds {shard.length} of {shard.size} along dimension {shard.dim}"
        raise SpecError.of(name, tuple(tensor.shape), why, "shard.of(whole)")
    vars(module).setdefault(KEY, {})[name] = shard


def shards_of(model: nn.Module) -> dict[str, Shard]:
    """The shards among a model's parameters and buffers by name, a tied one by its first. Groups of one count as whole."""
    found: dict[str, Shard] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or id(tensor) in seen:
                continue
            shard = registered(module, name, tensor)
            if shard is not None and shard.group.size > 1:
                seen.add(id(tensor))
                found[f"{prefix}.{name}" if prefix else name] = shard
    return found


def registered(module: nn.Module, name: str, tensor: Tensor) -> Shard | None:
    """What is known of one parameter or buffer of a module."""
    known: dict[str, Shard | None] = vars(module).get(KEY, {})
    if name in known:
        return known[name]
    marked: Shard | None = vars(tensor).get(MARK)
    return marked
