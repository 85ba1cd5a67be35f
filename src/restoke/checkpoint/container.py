"""One rank's tensors as one safetensors file, hashed while it is written."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from restoke.checkpoint.disk import Disk
from restoke.checkpoint.formats import ALGORITHM, ALGORITHMS, CODES, FileEntry

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in CODES}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # copies bytes, for any dtype of that size
PIECE = 4 << 20  # bytes that are hashed and then written while they are in the cache


def in_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """The keys in the order in which each tensor is aligned when they lie one after the other."""
    return sorted(tensors, key=lambda key: (-tensors[key].element_size(), key))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], disk: Disk) -> FileEntry:
    """Write a new file; a tensor on another device, or not contiguous, is copied by itself. Raises OSError."""
    order = in_order(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key in order:
        tensor = tensors[key]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[key] = {"dtype": CODES[NAMES[tensor.dtype]], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = ALGORITHMS[ALGORITHM]()
    size = 0

    def pieces() -> Iterator[memoryview | bytes]:
        nonlocal size
        for piece in _pieces(struct.pack("<Q", len(text)) + text, (tensors[key] for key in order)):
            digest.update(piece)
            size += len(piece)
            yield piece

    disk.write(path, pieces())
    return FileEntry(size, digest.hexdigest())


def _pieces(head: bytes, tensors: Iterator[Tensor]) -> Iterator[memoryview | bytes]:
    yield head
    for tensor in tensors:
        data = _bytes(tensor)
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # a dimension of one element may have any stride
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # arrays are buffers
