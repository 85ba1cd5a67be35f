"""A tensor that knows of which whole it is a part, through the operations that keep it so; after any other it knows that too.

A part of the logits looks like logits of fewer classes, and every loss would take it. So a part carries its description, an
operation that mixes or reorders what was cut loses it, and then whatever needs it refuses, naming the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from attrs import frozen
from torch import Tensor

from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.operations import ABOUT, is_loss, keeps, name_of, refuse_within
from restoke.nn.provenance import remember


@final
@frozen(eq=False)
class Lost:
    """What is left of a description after an operation that does not keep it."""

    shard: Shard
    by: str


class Part(Tensor):
    """A tensor with a description. `restoke.nn.describe` makes one, and `restoke.nn.shard_of` tells what it knows."""

    _described: Shard | Lost

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        with torch._C.DisableTorchFunctionSubclass():
            parts = [each for each in _tensors((*args, *kwargs.values())) if isinstance(each, Part)]
            if parts:
                _refuse(name, parts[0], args, kwargs)
            out = func(*args, **kwargs)
            if name == "__get__ _base" or (not isinstance(out, Tensor) and name.partition(" ")[0] in ABOUT):
                return out
            return _follow(name, parts, args, kwargs, out)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            return super().__deepcopy__(memo)  # type: ignore[no-any-return, no-untyped-call]
        memo[id(self)] = copied = _with(plain(self).detach().clone(), self._described).requires_grad_(self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        why = "what is saved of a part does not know its ranks"
        raise SpecError.of(
            "tensor", f"a part of shape {tuple(self.shape)}", why, "restoke.nn.plain(tensor), or gather it first"
        )


def _refuse(name: str, part: Part, args: Any, kwargs: dict[str, Any]) -> None:
    known = part._described
    if not isinstance(known, Lost):
        refuse_within(name, known, part, args, kwargs)
    elif is_loss(name, kwargs):  # anything else may well be over what was not cut: attention within a rank's own heads
        shard_of(part)


def describe(tensor: Tensor, shard: Shard) -> Tensor:
    """The tensor, known to be this part of a whole. Shares memory and gradient. In a group of one it is whole, and stays plain.

    Raises:
        SpecError: its length along the shard's dimension is not the shard's.
    """
    if tensor.shape[shard.dim] != shard.length:
        why = f"rank {shard.group.rank} of {shard.group.size} holds {shard.length} of {shard.size} along dimension {shard.dim}"
        raise SpecError.of("shard", tuple(tensor.shape), why, "a tensor of that length there")
    if shard.group.size == 1:
        return plain(tensor)
    part = _with(tensor, shard)
    remember(part, shard)
    return part


def plain(tensor: Tensor) -> Tensor:
    """The tensor without what is known of it: whoever asks for it takes it as it is."""
    return tensor.as_subclass(Tensor) if isinstance(tensor, Part) else tensor


def shard_of(tensor: Tensor) -> Shard | None:
    """Of which whole the tensor is a part; None where it is one itself.

    Raises:
        SpecError: it was made of a part by an operation that does not tell of which whole the result is.
    """
    if not isinstance(tensor, Part):
        return None
    if isinstance(tensor._described, Lost):
        lost = tensor._described
        why = f"it was made by {lost.by} from one rank's part of {lost.shard.size}, which does not tell what it is a part of"
        instead = "restoke.nn.describe(tensor, shard) if it still is that part, or gather it before"
        raise SpecError.of("shard", tuple(tensor.shape), why, instead)
    return tensor._described


def _with(tensor: Tensor, what: Shard | Lost) -> Tensor:
    part = tensor.as_subclass(Part)
    part._described = what
    return part


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _follow(name: str, parts: list[Part], args: Any, kwargs: dict[str, Any], out: Any) -> Any:
    """The result, described: by what its operands were, or as having lost that."""
    if isinstance(out, (list, tuple)):
        return type(out)([_follow(name, parts, args, kwargs, each) for each in out])
    if not isinstance(out, Tensor) or not parts:
        return out
    in_place = name.endswith("_") and not name.startswith("__get__")
    if any(out is part for part in parts) and not in_place:
        return out  # there was nothing to do
    first = parts[0]
    what: Shard | Lost = first._described
    if not isinstance(what, Lost):
        same = all(_same(what, first, other) for other in parts)
        kept = same and out.ndim > 0 and keeps(name, what, first, args, kwargs, out)
        what = what.along(what.dim) if kept else Lost(what, name.removeprefix("__get__ "))
    if out.ndim == 0 or (isinstance(what, Lost) and not out.dtype.is_floating_point):
        return plain(out)
    if isinstance(out, Part):  # done in place: no other tensor, or a leaf would be none any more
        out._described = what
        return out
    return _with(out, what)


def _same(shard: Shard, part: Part, other: Part) -> bool:
    """Whether both are the same cut of the same dimension, counted from the last."""
    known = other._described
    if isinstance(known, Lost) or known.size != shard.size or known.group.ranks != shard.group.ranks:
        return False
    return known.dim % other.ndim - other.ndim == shard.dim % part.ndim - part.ndim
