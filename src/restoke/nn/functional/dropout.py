"""Dropout whose mask belongs to places in the whole tensor, so that no number of ranks changes it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from restoke.distributed.groups import Group, get_group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.described import describe, plain, shard_of

LOW = (1 << 32) - 1


def parallel_dropout(
    input: Tensor,  # noqa: A002 (torch's name)
    p: float = 0.5,
    training: bool = True,
    *,
    group: Group | None = None,
) -> Tensor:
    """`torch.nn.functional.dropout` for ranks whose generators differ.

    What they hold alike stays alike, and parts are dropped independently, each as it would be in the whole. The seed is drawn
    by the group's first rank, from torch's generator of that device; sending it is a collective of one number.

    Args:
        input: alike on every rank of the group, or a described part.
        p: how much is dropped, 0 to 1.

    Raises:
        SpecError: `p` is another number, or the description of a part was lost.
    """
    if not 0 <= p <= 1:
        raise SpecError.of("p", p, "it is the probability to be dropped", "0 to 1")
    if not training or p == 0:
        return input
    shard, x = shard_of(input), plain(input)
    group = get_group(group) if shard is None else shard.group
    seed = torch.randint(1 << 62, (1,), device=x.device)
    if group.size > 1:
        dist.broadcast(seed, group.ranks[0], group=group.handle)
    kept = _noise(x, shard, seed) >= p * (1 << 32)
    out = x * (kept.to(x.dtype) / (1 - p)) if p < 1 else x * 0
    return out if shard is None else describe(out, shard)


def _noise(x: Tensor, shard: Shard | None, seed: Tensor) -> Tensor:
    """A number of 32 bits for each element, from the seed and the element's place in the whole."""
    places = _places(x, shard)
    high = places >> 32
    noise = _mixed(places.bitwise_and_(LOW).bitwise_xor_(seed & LOW))
    return _mixed(noise.add_(seed >> 32).add_(high.mul_(0x9E3779B1)).bitwise_and_(LOW))


def _places(x: Tensor, shard: Shard | None) -> Tensor:
    """Each element's number in the whole tensor, row by row."""
    shape = tuple(x.shape) if shard is None else shard.whole_shape(x)
    offsets = (0,) * x.ndim if shard is None else shard.offsets(x)
    places = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    stride = 1
    for dim in reversed(range(x.ndim)):
        along = torch.arange(offsets[dim], offsets[dim] + x.shape[dim], device=x.device).mul_(stride)
        places += along.view(-1, *[1] * (x.ndim - 1 - dim))
        stride *= shape[dim]
    return places


def _mixed(bits: Tensor) -> Tensor:
    """Every bit of the result depends on every bit, in place: the permutation "lowbias32" of Wellons, Hash Prospector."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits.bitwise_xor_(bits >> shift).mul_(factor).bitwise_and_(LOW)
    return bits.bitwise_xor_(bits >> 16)
