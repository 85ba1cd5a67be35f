"""What version 1 of the manifest knows of files: dtypes by name, their codes and sizes, and checksums. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from attrs import frozen

CODES = {  # torch's name of a dtype and the format's code for it
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
WIDER = {"64": 8, "32": 4, "16": 2}  # bytes of an element, by the bits in its code; of the others it is one
ITEMSIZE = {name: WIDER.get(code[-2:], 1) for name, code in CODES.items()}
ALGORITHMS: dict[str, Callable[[], Any]] = {"xxh3_128": xxhash.xxh3_128}
ALGORITHM = "xxh3_128"


@frozen
class FileEntry:
    """What a file must be: its size in bytes and its checksum in hexadecimal digits."""

    bytes: int
    checksum: str


def checksum(path: Path, algorithm: str) -> str:
    """The file's checksum. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return str(hashlib.file_digest(file, ALGORITHMS[algorithm]).hexdigest())
