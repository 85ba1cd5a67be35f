"""What each row aims at over the classes that this rank holds: one class or a probability for each, weighted and smoothed.

Row i lays a mass on class j: (1 - e) w_j at its own class, and e / C w_j on every one (Szegedy et al. 2016; torch's weights).
Its loss is the sum over classes of mass times -log p, and that is all that a loss asks for: masses, and what they weigh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import torch
from attrs import fields, frozen
from torch import Tensor

from restoke.distributed.shards import Shard

ALL = slice(None)
DIGESTS = 61  # unlike targets of a row go unseen once in so many times


class Aims(Protocol):
    """Over this rank's classes. `rows` and `classes` say which block is meant; rows of more dimensions are counted through."""

    @property
    def kept(self) -> Tensor:
        """(rows), bool: the others have no loss."""

    def measure(self, rows: slice, classes: slice, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's mass on these classes; and the sum of masses times scores. Scores: shape (rows, classes)."""

    def take_(self, rows: slice, classes: slice, block: Tensor, times: Tensor) -> None:
        """Takes the masses, times a number for each row, off the block, in place."""

    def divisors(self) -> Tensor:
        """(rows): what a row adds to the divisor of the mean. Over all ranks it is that of the row."""

    def checks(self) -> Tensor:
        """(3, rows), to be summed over ranks: 1 from the one that answers for the row, a digest of the target, its square."""


def alike(checks: Tensor, size: int) -> Tensor:
    """(rows), bool: over all ranks of a group of this size one answered for the row, and the digests do not vary."""
    owners, digest, square = checks
    return torch.logical_and(owners == 1, size * square == digest * digest)


def apart(aims: Aims) -> tuple[Callable[[Sequence[Tensor]], Aims], list[Tensor]]:
    """Its tensors, for autograd to keep, and what makes it of them again."""
    kind: Any = type(aims)
    values = {field.name: getattr(aims, field.name) for field in fields(kind)}
    names = [name for name, value in values.items() if isinstance(value, Tensor)]
    tensors = [values.pop(name) for name in names]
    return lambda kept: kind(**values, **dict(zip(names, kept, strict=True))), tensors


@final
@frozen(eq=False)
class Indices:
    """Each row aims at one class.

    Args:
        own: (rows), int64, counted from this rank's first class: it may lie outside.
        here: (rows), bool: it does not, and the row is kept.
        pull: (rows): (1 - e) w of the row's class where it is here, else 0.
        own_weight: (rows): w of the row's class where it is here, else 0.
        digest: (rows): small whole numbers, which sums over ranks hold exactly; NaN where the target is no class.
        weight: (classes of this rank), or None.
        even: e / C.
    """

    own: Tensor
    here: Tensor
    kept: Tensor
    pull: Tensor
    own_weight: Tensor
    weight: Tensor | None
    even: float
    first_rank: bool
    digest: Tensor

    @classmethod
    def of(
        cls, target: Tensor, shard: Shard, weight: Tensor | None, ignore_index: int, smoothing: float, dtype: torch.dtype
    ) -> Indices:
        """From the numbers of classes of the whole, shape (rows)."""
        own = target.to(torch.int64) - shard.start
        kept = target != ignore_index
        here = kept & (own >= 0) & (own < shard.length)
        own_weight = here.to(dtype)
        if weight is not None and shard.length:
            own_weight = torch.where(here, weight[own.clamp(0, shard.length - 1)], 0)
        digest = torch.where(~kept | ((target >= 0) & (target < shard.size)), (target % DIGESTS).to(dtype), torch.nan)
        pull, even = own_weight * (1 - smoothing), smoothing / shard.size
        return cls(own, here, kept, pull, own_weight, weight, even, shard.group.rank == 0, digest)

    def measure(self, rows: slice, classes: slice, scores: Tensor) -> tuple[Tensor, Tensor]:
        at, pull = self._at(rows, classes, scores.shape[1])
        aim = torch.where(pull != 0, pull * scores.gather(1, at).squeeze(1), 0)
        if not self.even:
            return pull, aim
        even = self.even * self.kept[rows].to(scores.dtype)
        if self.weight is None:
            return pull + even * scores.shape[1], aim + torch.where(self.kept[rows], even * scores.sum(1), 0)
        weight = self.weight[classes]
        return pull + even * weight.sum(), aim + torch.where(self.kept[rows], even * (scores @ weight), 0)

    def take_(self, rows: slice, classes: slice, block: Tensor, times: Tensor) -> None:
        at, pull = self._at(rows, classes, block.shape[1])
        if self.even:
            even = times * self.even
            if self.weight is None:
                block.sub_(even.unsqueeze(1))
            else:
                block.addr_(even, self.weight[classes], alpha=-1)
        block.scatter_add_(1, at, (-times * pull).unsqueeze(1))

    def divisors(self) -> Tensor:
        return self.own_weight

    def checks(self) -> Tensor:
        owners = self.here | ~self.kept if self.first_rank else self.here
        return torch.stack((owners.to(self.digest.dtype), self.digest, self.digest * self.digest))

    def _at(self, rows: slice, classes: slice, width: int) -> tuple[Tensor, Tensor]:
        """Where in the block the row's class is, shape (rows, 1), and its pull: 0 where it is not there."""
        own, pull = self.own[rows], self.pull[rows]
        if classes.start is not None:
            own = own - classes.start
            pull = torch.where((own >= 0) & (own < width), pull, 0)
        return own.clamp(0, width - 1).unsqueeze(1), pull


@final
@frozen(eq=False)
class Probabilities:
    """Each row aims at every class, as much as the target says: shape (batch, classes of this rank, positions)."""

    target: Tensor
    kept: Tensor
    weight: Tensor | None
    smoothing: float
    even: float
    first_rank: bool

    @classmethod
    def of(cls, target: Tensor, shard: Shard, weight: Tensor | None, smoothing: float) -> Probabilities:
        kept = torch.ones(target.shape[0] * target.shape[2], dtype=torch.bool, device=target.device)
        return cls(target, kept, weight, smoothing, smoothing / shard.size, shard.group.rank == 0)

    def measure(self, rows: slice, classes: slice, scores: Tensor) -> tuple[Tensor, Tensor]:
        masses = self._masses(rows, classes, scores.dtype)
        return masses.sum(1), (masses * scores).sum(1)

    def take_(self, rows: slice, classes: slice, block: Tensor, times: Tensor) -> None:
        block.addcmul_(self._masses(rows, classes, block.dtype), times.unsqueeze(1), value=-1)

    def divisors(self) -> Tensor:
        return self.kept * float(self.first_rank)

    def checks(self) -> Tensor:
        """The first rank answers for all: probabilities are not compared."""
        return torch.stack((self.divisors(), *[torch.zeros_like(self.kept, dtype=torch.float32)] * 2))

    def _masses(self, rows: slice, classes: slice, dtype: torch.dtype) -> Tensor:
        positions = self.target.shape[2]
        # at several positions the rows of a block are those of one element of the batch
        block = self.target[rows, classes, 0] if positions == 1 else self.target[rows.start // positions, classes].t()
        masses = block.to(dtype)
        if self.smoothing:
            masses = masses * (1 - self.smoothing) + self.even
        return masses if self.weight is None else masses * self.weight[classes]
