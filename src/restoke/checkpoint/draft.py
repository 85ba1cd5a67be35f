"""What one rank brings to a checkpoint: its chunks, and plain values turned into JSON and tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

import xxhash
from attrs import frozen
from torch import Tensor

from restoke.checkpoint.plain import to_json
from restoke.checkpoint.plan import Row, check_key, row, stored
from restoke.parts import Captured, Chunk
from restoke.world import World

OWN = "rank/"  # values under it are each rank's own; the others are those of rank 0


@final
@frozen
class Draft:
    """Nothing in it is copied: the tensors are those that were captured."""

    tensors: dict[str, Tensor]
    rows: list[Row]  # of the chunks, by key
    value_rows: list[Row]  # of the tensors among the values
    values: Any
    own_values: Any
    meta: Any

    @classmethod
    def of(cls, captured: Captured, meta: Mapping[str, Any], world: World) -> Draft:
        """Raises CheckpointError: a value is not plain, or a tensor cannot be stored."""
        for key in captured.chunks:
            check_key(key)
        shared: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        common = {name: value for name, value in captured.values.items() if not name.startswith(OWN)} if world.is_main else {}
        alone = {name.removeprefix(OWN): value for name, value in captured.values.items() if name.startswith(OWN)}
        values = to_json(common, shared, "", "values")
        own_values = to_json(alone, own, "", f"values/{OWN}{world.rank}")
        extra = {key: Chunk.whole(tensor) for key, tensor in (shared | own).items()}
        rows = [row(key, captured.chunks[key]) for key in sorted(captured.chunks)]
        tensors = {key: stored(chunk) for key, chunk in (captured.chunks | extra).items()}
        value_rows = [row(key, chunk) for key, chunk in extra.items()]
        return cls(tensors, rows, value_rows, values, own_values, to_json(dict(meta), None, "meta"))

    def digest(self) -> str:
        """Alike on ranks that hold the same chunks."""
        return xxhash.xxh3_128_hexdigest(json.dumps(self.rows).encode())
