"""Boxes of tensors, read from their file straight into the memory where they are wanted."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, final

import torch
from attrs import define
from torch import Tensor

from restoke.checkpoint.container import BITS
from restoke.checkpoint.formats import CODES, ITEMSIZE
from restoke.checkpoint.tiling import Box

PIECE = 4 << 20  # bytes that are read at once where they must be put apart
LIMIT = 100 << 20  # bytes of a header, as safetensors has it


@final
@define(eq=False)
class TensorFile:
    """A safetensors file that stays open: what takes its place later is not what is read. Nothing of it is mapped, so a file
    that was cut off is an error and not a signal.

    `open` and `read` raise OSError and ValueError.
    """

    _file: FileIO
    _begin: int
    _header: dict[str, Any]

    def __attrs_post_init__(self) -> None:
        weakref.finalize(self, self._file.close)

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        file = FileIO(path)
        try:
            size = int.from_bytes(_exactly(file, 0, 8), "little")
            if size > LIMIT:
                raise ValueError(f"its header would have {size} bytes")
            return cls(file, 8 + size, json.loads(bytes(_exactly(file, 8, size))))
        except BaseException:
            file.close()
            raise

    def read(self, key: str, dtype: str, held: Box, wanted: Box, into: Tensor) -> None:
        """Fill `into`, of the shape of `wanted`, with that part of the tensor `key`, which is the block `held` of the whole."""
        begin, end = self._span(key, dtype, held)
        itemsize = ITEMSIZE[dtype]
        bits = into.view(BITS[itemsize])
        for part in _parts(wanted, held, wanted, PIECE // itemsize):
            target = bits[part.within(wanted)] if part.shape else bits
            first, count = _cover(part, held)
            start = begin + first * itemsize
            assert begin <= start <= start + count * itemsize <= end
            if count == part.volume and target.is_contiguous():
                _fill(self._file, start, memory_of(target))
            else:
                apart = torch.empty(count, dtype=bits.dtype)
                _fill(self._file, start, memory_of(apart))
                target.copy_(apart.as_strided(part.shape, _strides(held.shape)))

    def _span(self, key: str, dtype: str, held: Box) -> tuple[int, int]:
        entry = self._header.get(key)
        if not isinstance(entry, dict) or [entry.get("dtype"), entry.get("shape")] != [CODES[dtype], list(held.shape)]:
            raise ValueError(f"it holds {key} no more as the manifest says")
        begin, end = entry["data_offsets"]
        if end - begin != held.volume * ITEMSIZE[dtype]:
            raise ValueError(f"it holds {key} in {end - begin} bytes")
        return self._begin + begin, self._begin + end


def _parts(box: Box, held: Box, wanted: Box, limit: int) -> Iterator[Box]:
    """The box in parts that lie in one piece both in the file and in memory, or are within `limit` elements of the file."""
    count = _cover(box, held)[1]
    if count <= limit or (count == box.volume and _cover(box, wanted)[1] == box.volume):
        yield box
        return
    dim = next(dim for dim, size in enumerate(box.shape) if size > 1)
    half = box.shape[dim] // 2
    for start, size in ((0, half), (half, box.shape[dim] - half)):
        offsets, shape = list(box.offsets), list(box.shape)
        offsets[dim] += start
        shape[dim] = size
        yield from _parts(Box(tuple(offsets), tuple(shape)), held, wanted, limit)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _cover(box: Box, outer: Box) -> tuple[int, int]:
    """Where in the outer block's elements the box begins, and how many there are from its first to its last."""
    strides = _strides(outer.shape)
    first = sum((start - zero) * step for start, zero, step in zip(box.offsets, outer.offsets, strides, strict=True))
    return first, 1 + sum((size - 1) * step for size, step in zip(box.shape, strides, strict=True))


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # arrays are buffers


def _exactly(file: FileIO, start: int, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    _fill(file, start, data)
    return data


def _fill(file: FileIO, start: int, memory: memoryview) -> None:
    file.seek(start)
    while memory.nbytes:
        count = file.readinto(memory)
        if not count:
            raise ValueError("it ends too early")
        memory = memory[count:]
