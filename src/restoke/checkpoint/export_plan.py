"""What is exported under which name, in which dtype, and which file of how many it goes to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import final

import torch
from attrs import frozen

from restoke.checkpoint.container import NAMES
from restoke.checkpoint.formats import CODES
from restoke.checkpoint.natural import natural
from restoke.checkpoint.tiling import Box
from restoke.checkpoint.weights import MODEL, Weights
from restoke.errors import CheckpointError, nearest

CAST = ("bfloat16", "float16", "float32", "float64")
CODE = CODES | {"float4_e2m1fn_x2": "F4"}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
RESERVED = "__metadata__"


@final
@frozen
class Item:
    """One tensor to write: its name outside, the key that it is read by, and the dtype that it is written in."""

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def code(self) -> str:
        return CODE[NAMES[self.dtype]]

    @property
    def shape_told(self) -> tuple[int, ...]:
        """As the format counts: of two values to a byte, both."""
        return (*self.shape[:-1], self.shape[-1] * 2) if self.code == "F4" else self.shape


def target_dtype(name: str | None) -> torch.dtype | None:
    """Raises CheckpointError for what no weights are cast to."""
    if name is None:
        return None
    plain = str(name).removeprefix("torch.")
    if plain not in CAST:
        raise CheckpointError.of("dtype", name, "weights are not cast to it", nearest(plain, CAST))
    found: torch.dtype = getattr(torch, plain)
    return found


def items_of(weights: Weights, dtype: torch.dtype | None, tied: bool) -> list[Item]:
    """The tensors in the order of their names; with `tied` those that share another's memory as well, under each name."""
    keys = {key.removeprefix(MODEL): key for key in weights.keys()}  # noqa: SIM118
    if tied:
        keys |= {name: keys[owner] for name, owner in aliases_of(weights).items()}
    return [_item(weights, name, keys[name], dtype) for name in sorted(keys, key=natural)]


def _item(weights: Weights, name: str, key: str, dtype: torch.dtype | None) -> Item:
    held = weights.dtype(key)
    if name == RESERVED:
        raise CheckpointError.of("weights", name, "safetensors keeps this name for itself", "rename the parameter")
    cast = dtype is not None and held.is_floating_point and held.itemsize > 1  # what is quantised has a scale of its own
    return Item(name, key, weights.shape(key), dtype if cast and dtype is not None else held)


def aliases_of(weights: Weights) -> dict[str, str]:
    """The other names of tied tensors, each with the name that has the data."""
    told: dict[str, str] = weights.values["model"].get("aliases", {})
    held = set(weights.keys())
    return {name: owner for name, owner in told.items() if MODEL + owner in held and MODEL + name not in held}


def split(items: Sequence[Item], limit: int | None) -> dict[str, list[Item]]:
    """Files by name, filled in order up to `limit` bytes; what is larger by itself has a file of its own."""
    shards: list[list[Item]] = [[]]
    size = 0
    for item in items:
        if limit is not None and shards[-1] and size + item.bytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += item.bytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards, 1)}


def boxes(shape: tuple[int, ...], largest: int) -> Iterator[Box]:
    """The whole in boxes of at most `largest` elements, in the order in which they lie in a file, each in one piece there."""
    whole = Box.whole(shape)
    if whole.volume <= largest:
        yield whole
        return
    inner = math.prod(shape[1:])
    rows = largest // inner
    if rows:
        for start in range(0, shape[0], rows):
            yield Box((start, *whole.offsets[1:]), (min(rows, shape[0] - start), *shape[1:]))
        return
    for start in range(shape[0]):
        for box in boxes(shape[1:], largest):
            yield Box((start, *box.offsets), (1, *box.shape))
