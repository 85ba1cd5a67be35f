"""Boxes: do chunks tile a tensor exactly, and what does a wanted box share with one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from attrs import frozen


@final
@frozen
class Box:
    """A block of a tensor: `shape` elements from `offsets` on."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        return cls((0,) * len(shape), shape)

    @property
    def volume(self) -> int:
        return math.prod(self.shape)

    def inside(self, shape: tuple[int, ...]) -> bool:
        if not len(self.offsets) == len(self.shape) == len(shape):
            return False
        return all(0 <= start <= end <= size for start, end, size in zip(self.offsets, self._ends(), shape, strict=True))

    def shared(self, other: Box) -> Box | None:
        """What both cover; None where that is nothing."""
        starts = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self._ends(), other._ends())
        shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, shape) if all(size > 0 for size in shape) else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that cut this box out of the outer one."""
        return tuple(
            slice(start - zero, start - zero + size)
            for start, size, zero in zip(self.offsets, self.shape, outer.offsets, strict=True)
        )

    def _ends(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.offsets, self.shape, strict=True))


def untiled(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """Why the boxes do not cover each element of `shape` exactly once, or None where they do.

    A tensor without elements is one box. Boxes that lie inside, add up to the whole and do not overlap leave no gap.
    """
    volume = math.prod(shape)
    if volume == 0:
        return None if list(boxes) == [Box.whole(shape)] else f"a tensor of shape {shape} is one empty chunk"
    for box in boxes:
        if box.volume == 0 or not box.inside(shape):
            return f"a chunk of shape {box.shape} at {box.offsets} is not inside {shape}"
    total = sum(box.volume for box in boxes)
    if total != volume:
        return f"its chunks hold {total} of {volume} elements"
    return "its chunks overlap" if _overlap(boxes) else None


def _overlap(boxes: Sequence[Box]) -> bool:
    """A sweep along the dimension that cuts the most; in a regular sharding few boxes are open at once."""
    if len(boxes) < 2:
        return False
    dims = range(len(boxes[0].shape))
    sweep = max(dims, key=lambda dim: len({box.offsets[dim] for box in boxes}), default=None)
    if sweep is None:
        return True  # a scalar has room for one
    opened: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.offsets[sweep]):
        opened = [other for other in opened if other.offsets[sweep] + other.shape[sweep] > box.offsets[sweep]]
        if any(box.shared(other) for other in opened):
            return True
        opened.append(box)
    return False
