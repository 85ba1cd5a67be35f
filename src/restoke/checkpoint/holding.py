"""A file is verified and its tensors are kept in one reading, where the rank that verifies it will want them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, final

import torch
from attrs import define, field
from torch import Tensor

from restoke.checkpoint.container import DTYPES
from restoke.checkpoint.formats import ALGORITHMS, CODES
from restoke.checkpoint.reading import LIMIT, memory_of
from restoke.checkpoint.tiling import Box

ROOM = 2 << 30  # bytes that a rank keeps; what does not fit is read again
LEAST = 1 << 16  # bytes of a tensor that is worth keeping
STEP = 1 << 20  # bytes that are read and then hashed while they are in the cache


@final
@define
class Held:
    """What was verified, by the rank of its file and its key. Each tensor is given away once."""

    room: int = ROOM
    _tensors: dict[tuple[int, str], Tensor] = field(factory=dict)

    def give(self, rank: int, key: str) -> Tensor | None:
        """The chunk that is under the key in the file of the rank, if it is here."""
        return self._tensors.pop((rank, key), None)

    def checksum(self, path: Path, algorithm: str, rank: int, wanted: Mapping[str, tuple[Box, str]]) -> str:
        """The file's checksum. Of `wanted`, blocks and dtypes by key, as much is kept as there is room. Raises OSError."""
        digest = ALGORITHMS[algorithm]()
        scratch = memoryview(bytearray(STEP))
        with FileIO(path) as file:
            for key, size in _spans(file, digest, wanted):
                if size > self.room or size < LEAST:
                    _skip(file, digest, scratch, size)
                    continue
                box, dtype = wanted[key]
                tensor = torch.empty(box.shape, dtype=DTYPES[dtype])
                self.room -= size
                self._tensors[rank, key] = tensor
                _fill(file, digest, memory_of(tensor))
            while _step(file, digest, scratch):
                pass
        return str(digest.hexdigest())


def _spans(file: FileIO, digest: Any, wanted: Mapping[str, tuple[Box, str]]) -> Iterator[tuple[str, int]]:
    """The tensors in the order of their bytes, as long as the header says what is wanted, and with their sizes."""
    head = file.read(8)
    digest.update(head)
    size = int.from_bytes(head, "little")
    text = file.read(size) if len(head) == 8 and size <= LIMIT else b""
    digest.update(text)
    try:
        entries = [(key, entry) for key, entry in json.loads(text).items() if key in wanted]
        entries.sort(key=lambda item: item[1]["data_offsets"])
        position = 0
        for key, entry in entries:
            box, dtype = wanted[key]
            begin, end = entry["data_offsets"]
            described = [entry["dtype"], entry["shape"], begin, end - begin]
            if described != [CODES[dtype], list(box.shape), position, box.volume * DTYPES[dtype].itemsize]:
                return
            position = end
            yield key, end - begin
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return  # what is wrong with it, the checksum or the manifest will say


def _fill(file: FileIO, digest: Any, memory: memoryview) -> None:
    while memory.nbytes and (count := _step(file, digest, memory[:STEP])):
        memory = memory[count:]


def _skip(file: FileIO, digest: Any, scratch: memoryview, size: int) -> None:
    while size and (count := _step(file, digest, scratch[:size])):
        size -= count


def _step(file: FileIO, digest: Any, memory: memoryview) -> int:
    count = file.readinto(memory) or 0
    digest.update(memory[:count])
    return count
