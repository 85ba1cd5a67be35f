"""Which part of a dimension each rank of a group holds: the first ranks one element more where it does not divide."""

from __future__ import annotations

from typing import Any, final

from attrs import frozen
from torch import Tensor

from restoke.distributed.groups import Group
from restoke.errors import SpecError


def cut(size: int, parts: int, index: int) -> tuple[int, int]:
    """Where part `index` of `size` elements begins, and how many it has: `size % parts` parts have one more than the others."""
    each, more = divmod(size, parts)
    return index * each + min(index, more), each + (index < more)


@final
@frozen(eq=False)
class Shard:
    """This rank's part of a tensor whose dimension `dim` has `size` elements over the whole group.

    `dim` may be negative. Shards are balanced: none is empty unless `size` is less than the group's.
    """

    group: Group
    dim: int
    size: int

    def __attrs_post_init__(self) -> None:
        if self.size < 1:
            raise SpecError.of("size", self.size, "a dimension that is cut has one element at least", "1 or more")

    @property
    def start(self) -> int:
        """The first element that is here."""
        return cut(self.size, self.group.size, self.group.rank)[0]

    @property
    def length(self) -> int:
        """How many are here."""
        return cut(self.size, self.group.size, self.group.rank)[1]

    @property
    def lengths(self) -> list[int]:
        """How many each rank has."""
        return [cut(self.size, self.group.size, rank)[1] for rank in range(self.group.size)]

    def of(self, whole: Tensor) -> Tensor:
        """This rank's part, a view. Raises SpecError where `whole` is of another size."""
        if whole.shape[self.dim] != self.size:
            why = f"dimension {self.dim} of the whole has {self.size} elements"
            raise SpecError.of("tensor", tuple(whole.shape), why, "the whole tensor")
        return whole.narrow(self.dim, self.start, self.length)

    def whole_shape(self, part: Tensor) -> tuple[int, ...]:
        """The shape of the whole, from that of a part."""
        shape = list(part.shape)
        shape[self.dim] = self.size
        return tuple(shape)

    def offsets(self, part: Tensor) -> tuple[int, ...]:
        """Where the part begins in the whole."""
        offsets = [0] * part.ndim
        offsets[self.dim] = self.start
        return tuple(offsets)

    def along(self, dim: int) -> Shard:
        """The same cut, along another dimension: that of a product, say."""
        return Shard(self.group, dim, self.size)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        return self
