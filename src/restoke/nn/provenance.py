"""Whether a tensor that says nothing was made from one rank's part, by something that drops what is known of tensors.

A compiled function or a kernel's wrapper may give plain tensors. How they were made still stands in the autograd graph, so
a description is left there too.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from restoke.distributed.shards import Shard

KEY = "restoke.shard"
REACH = 64  # nodes: what comes between a layer and its loss is shallow, and each costs a microsecond
WHOLE = frozenset(("_GatherBackward", "_ReduceBackward"))  # what is behind them was a part, and is none any more
_ANY = [False]


def remember(part: Tensor, shard: Shard) -> None:
    """Leave in the graph that this is a part."""
    if part.grad_fn is not None:
        _ANY[0] = True
        _notes(part.grad_fn)[KEY] = shard


def came_from(tensor: Tensor, length: int) -> Shard | None:
    """The shard of this rank, `length` long, from which the tensor was made; None where the graph near it knows of none."""
    if not _ANY[0] or tensor.grad_fn is None:
        return None
    queue, seen = deque([tensor.grad_fn]), {tensor.grad_fn}
    while queue:
        node = queue.popleft()
        known: Shard | None = _notes(node).get(KEY)
        if known is not None:
            if known.length == length != known.size:
                return known
            continue
        if node.name() in WHOLE:
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(seen) < REACH:
                seen.add(following)
                queue.append(following)
    return None


def _notes(node: Any) -> dict[str, Any]:
    notes: dict[str, Any] = node.metadata
    return notes
