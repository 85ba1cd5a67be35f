"""Ranks agree on what they are about to exchange: one small message, so that a mismatch is an error on each, not garbage."""

from __future__ import annotations

import hashlib
import json
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from restoke import comm
from restoke.errors import DataError
from restoke.facades.accelerate.trees import leaves
from restoke.world import World


@final
class DistributedOperationException(DataError):  # noqa: N818 - the name that scripts catch
    """Ranks called a collective with tensors that do not fit together."""


def describe(data: Any, *, shapes: bool = True) -> list[list[Any]]:
    """The way to each leaf, its kind and its shape, as JSON."""
    return [[way, *_kind(leaf, shapes)] for way, leaf in leaves(data)]


def _kind(leaf: Any, shapes: bool) -> tuple[Any, ...]:
    if not isinstance(leaf, Tensor):
        return (type(leaf).__name__,)
    shape = list(leaf.shape) if shapes else [leaf.ndim]
    return str(leaf.dtype).removeprefix("torch."), shape


def agree(verb: str, mine: list[list[Any]], world: World) -> None:
    """Go on where every rank says the same.

    Raises:
        DistributedOperationException: on every rank, which rank says something else.
    """
    if world.size == 1:
        return
    digest = hashlib.blake2b(json.dumps([verb, mine]).encode(), digest_size=7).digest()
    own = torch.tensor([int.from_bytes(digest, "big")], device=comm.device_of(world))
    both = torch.cat([own, -own])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    if int(both[0]) == -int(both[1]):
        return
    told = comm.gather_json([verb, mine], world)
    odd = [rank for rank, other in enumerate(told) if other != _usual(told)]
    got = {f"rank {rank}": _said(*told[rank]) for rank in (odd[0], next(r for r in range(world.size) if r not in odd))}
    why = f"rank {odd[0]} calls it with something else than the other ranks"
    instead = "the same call with the same shapes and dtypes on every rank: pad_across_processes before it, or gather_object"
    raise DistributedOperationException.of(verb, got, why, instead)


def _usual(told: list[Any]) -> Any:
    return max(told, key=told.count)


def _said(verb: str, leaves_: list[list[Any]]) -> str:
    said = [f"{way or 'a tensor'} {kind[0]}{list(kind[1]) if len(kind) > 1 else ''}" for way, *kind in leaves_]
    return f"{verb}({', '.join(said)})"
