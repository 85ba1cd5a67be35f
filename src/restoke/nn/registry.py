"""Which parameters of a model are one rank's shards: layers say so when they are built, and whoever trains them asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from restoke.errors import SpecError

if TYPE_CHECKING:
    from restoke.distributed.shards import Shard  # every session asks this module, and few have layers that ranks share

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
    firsts: dict[int, tuple[str, Shard]] = {}
    for name, tensor, shard in _named(model):
        firsts.setdefault(id(tensor), (name, shard))
    return dict(firsts.values())


def all_shards(model: nn.Module) -> dict[str, Shard]:
    """The same, a tied one by each of its names."""
    return {name: shard for name, _, shard in _named(model)}


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor, Shard]]:
    """By every name, also of a module that borrows a layer's parameter and says nothing of it."""
    own = [
        (f"{prefix}.{name}" if prefix else name, tensor, registered(module, name, tensor))
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    ]
    known = {id(tensor): shard for _, tensor, shard in own if shard is not None and shard.group.size > 1}
    for name, tensor, _ in own:
        if id(tensor) in known:
            yield name, tensor, known[id(tensor)]


def registered(module: nn.Module, name: str, tensor: Tensor) -> Shard | None:
    """What is known of one parameter or buffer of a module."""
    known: dict[str, Shard | None] = vars(module).get(KEY, {})
    if name in known:
        return known[name]
    marked: Shard | None = vars(tensor).get(MARK)
    return marked
