"""Settings of tensor parallelism: which layers are sharded over the ranks of `tensor=N`, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from attrs import field

from restoke.configs.declare import settings
from restoke.errors import SpecError, nearest

STYLES = ("columns", "rows", "vocabulary", "sequence", "heads")


def plan(value: Any, axis: str) -> dict[str, str]:
    """Styles by name pattern; their order means nothing."""
    if not isinstance(value, Mapping):
        raise SpecError.of(axis, value, "it is not a mapping of name patterns to styles", '{"*.up": "columns"}')
    for pattern, style in value.items():
        if not isinstance(pattern, str) or not pattern:
            raise SpecError.of(axis, pattern, "it is not a name pattern", "such as layers.*.up")
        if style not in STYLES:
            raise SpecError.of(f"{axis}.{pattern}", style, "there is no such style", nearest(str(style), STYLES))
    return dict(sorted(value.items()))


@settings
class TensorConfig:
    """The plan of tensor parallelism: the patterns that match a layer's name give it one style.

    "columns" shards the outputs of a Linear, which hands each rank's share on to the "rows" layer after it; "rows" shards its
    inputs, and sums the outputs. "vocabulary" shards the entries of an Embedding or the outputs of a head, and gives whole
    outputs. "sequence" makes a norm, a dropout or an Embedding work on a share of the sequence, as then everything does that
    lies between "rows" and "columns" layers; "heads" is for a norm between those two, which sees the heads of its rank alone.

    Attributes:
        plan: Styles ("columns", "rows", "vocabulary", "sequence", "heads") by name pattern of layers.
    """

    plan: Annotated[dict[str, str], plan] = field(factory=dict, hash=False)
