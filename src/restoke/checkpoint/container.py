"""One rank's tensors as one safetensors file, hashed while it is written."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from attrs import frozen
from torch import Tensor

from restoke.checkpoint.disk import Disk

CODES = {  # torch's name of a dtype and the format's code for it, in version 1 of the manifest
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "U8",  # two to a byte: as bytes it can be cut anywhere
}
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in CODES}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ITEMSIZE = {name: dtype.itemsize for name, dtype in DTYPES.items()}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # copies bytes, for any dtype of that size
ALGORITHMS: dict[str, Callable[[], Any]] = {"xxh3_128": xxhash.xxh3_128}
ALGORITHM = "xxh3_128"
PIECE = 4 << 20  # bytes that are hashed and then written while they are in the cache


@frozen
class FileEntry:
    """What a file must be: its size in bytes and its checksum in hexadecimal digits."""

    bytes: int
    checksum: str


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


def checksum(path: Path, algorithm: str) -> str:
    """The file's checksum. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return str(hashlib.file_digest(file, ALGORITHMS[algorithm]).hexdigest())
