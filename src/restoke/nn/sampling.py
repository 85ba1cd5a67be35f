"""Which classes take part in a step: those that occur in the batch, and others at random, as many on every rank."""

from __future__ import annotations

from hashlib import blake2b
from typing import final

import torch
from attrs import field, frozen
from torch import Tensor

from restoke.distributed.collectives import all_gather, all_reduce, exchange_lengths
from restoke.distributed.groups import Group
from restoke.distributed.shards import Shard, cut
from restoke.errors import SpecError


@final
@frozen(eq=False)
class Sample:
    """The classes of one rank that take part, and of all ranks' sample which part they are.

    Sample sizes are balanced as shards are, so that a sample of all classes is all classes, in order.
    """

    index: Tensor  # rows of the shard, ascending
    shard: Shard  # of the sample: size is that of all ranks' together

    def positions(self, rows: Tensor) -> Tensor:
        """Where these rows of the shard, which are in the sample, stand in this rank's part of it."""
        return torch.searchsorted(self.index, rows)


@final
@frozen(eq=False)
class Positives:
    """The classes that occur in a batch: in those of all groups, where there are more than one."""

    rows: Tensor  # of this rank's shard, ascending
    counts: list[int] = field(factory=list)  # on each rank of the group


def positives(target: Tensor, classes: Shard) -> Positives:
    """Negative targets are none. All ranks have the targets, so that each knows how many positives the others have.

    Raises:
        SpecError: a target is no class.
    """
    found = torch.unique(_of_all_groups(target, classes.group))
    found = found[found >= 0]
    starts = [cut(classes.size, classes.group.size, rank)[0] for rank in range(classes.group.size)]
    ends = torch.tensor([*starts[1:], classes.size, torch.iinfo(torch.int64).max], device=found.device)
    *until, beyond = torch.searchsorted(found, ends).tolist()
    if beyond > until[-1]:
        raise SpecError.of("target", int(found[-1]), f"there are {classes.size} classes", f"0 to {classes.size - 1}, or -100")
    bounds = [0, *until]
    rank = classes.group.rank
    rows = found[bounds[rank] : bounds[rank + 1]] - classes.start
    return Positives(rows, [end - first for first, end in zip(bounds, until, strict=False)])


def _of_all_groups(target: Tensor, group: Group) -> Tensor:
    """Groups hold copies of the class vectors, whose gradients are averaged: so they must sample alike."""
    if group.peers is None:
        return target
    return all_gather(target, 0, exchange_lengths(target.shape[0], target.device, group.peers), group.peers)


def size_of(rate: float, classes: Shard, needed: list[int]) -> int:
    """How many classes all ranks sample together: `rate` of all, or more where some rank needs more than its share."""
    size = classes.group.size
    enough = [(need - 1) * size + rank + 1 for rank, need in enumerate(needed) if need]  # rank's share is then just `need`
    return min(classes.size, max(round(rate * classes.size), size, *enough, 1))


def draw(size: int, classes: Shard, kept: Tensor, seed: int, number: int) -> Sample:
    """A sample of `size` classes over all ranks with these rows kept; others are drawn uniformly, without replacement.

    The rule of seeds: draw `number` of a rank begins from a hash of the seed, the number and the rank's place in its group.
    """
    shard = Shard(classes.group, 0, size)
    if size == classes.size:
        return Sample(torch.arange(classes.length, device=kept.device), shard)
    generator = torch.Generator(kept.device)
    words = f"{seed}/{number}/{classes.group.rank}"
    generator.manual_seed(int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big") >> 1)
    order = torch.rand(classes.length, generator=generator, device=kept.device)
    order[kept] = 2.0
    return Sample(order.topk(shard.length, sorted=False).indices.sort().values, shard)


def among(target: Tensor, sample: Sample, classes: Shard) -> Tensor:
    """Targets as numbers among the sampled classes of all ranks, alike on each; negative ones as they are. A new tensor."""
    own = target - classes.start
    here = (own >= 0) & (own < classes.length)
    found = torch.where(here, sample.positions(own.contiguous()) + sample.shard.start, 0)
    all_reduce(found, classes.group)
    return torch.where(target < 0, target, found)


def rarity(sample: Sample, found: Positives, classes: Shard) -> Tensor:
    """log(1 / p) of each sampled class, where p is how likely it was in the sample; 0 of the positives, which always are.

    Added to logits it makes a sum of exponentials over the sample that of all classes, in expectation.
    """
    values = torch.zeros(sample.index.shape[0], dtype=torch.float64, device=sample.index.device)
    others, drawn = classes.length - len(found.rows), len(values) - len(found.rows)
    if drawn:
        values += torch.tensor(others / drawn, dtype=torch.float64).log()
        values[sample.positions(found.rows)] = 0
    return values
