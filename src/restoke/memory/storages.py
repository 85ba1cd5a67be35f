"""The storages that lie behind tensors, and those of a session by class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from restoke.memory.wrapped import buckets, gathered
from restoke.parts import Parts

COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
Classed = tuple[str, Tensor]


def storages(tensor: Tensor) -> Iterator[UntypedStorage]:
    """Where its values lie. What wraps tensors (a DTensor, a collective under way, a quantised tensor) is looked through."""
    for inner in plain(tensor):
        try:
            yield inner.untyped_storage()
        except NotImplementedError:  # an engine's own layout: nothing of it can be seen
            continue


def plain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that it is made of on this rank: itself, where it wraps none."""
    if is_traceable_wrapper_subclass_type(type(tensor)):
        wrapper: Any = tensor
        inner = (getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0])
        yield from (found for part in inner if isinstance(part, Tensor) for found in plain(part))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in COMPRESSED:
        yield from (tensor.values(), *(getattr(tensor, name)() for name in COMPRESSED[tensor.layout]))
    else:
        yield tensor


def walk(parts: Parts) -> Iterator[Classed]:
    """Every tensor that a session's model and optimizer hold now, by class. A storage is of the first that it comes with."""
    own, stepped = list(parts.module.parameters()), list(_stepped(parts))
    yield from (("parameters", p) for p in own)
    yield from (("buffers", buffer) for buffer in parts.module.buffers())
    yield from (("optimizer", p) for p in stepped)  # shards are views of parameters; copies in float32 are its state
    yield from (("optimizer", value) for value in _tensors(parts.optimizer.state.values()))
    yield from (("gradients", p.grad) for p in (*own, *stepped) if p.grad is not None)
    yield from gathered(parts.model)
    yield from (("buckets", bucket) for bucket in buckets(parts.model))


def _stepped(parts: Parts) -> Iterator[Tensor]:
    return (p for group in parts.optimizer.param_groups for p in group["params"])


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, Tensor))
