"""The manifest of a checkpoint: what is in its files. Read as hostile input: what is not exactly right is refused."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, final

import xxhash
from attrs import field, frozen

from restoke.checkpoint.formats import ALGORITHM, ALGORITHMS, CODES, ITEMSIZE, FileEntry
from restoke.checkpoint.tiling import Box, untiled

FORMAT, VERSION = "restoke", 1
NAME = "manifest.json"
LIMIT = 1 << 28  # bytes of a manifest, and ...
LARGEST = 1 << 60  # ... bytes of a tensor: beyond it the file is an attack
HEAD = re.compile(rb'\{"checksum": "xxh3_128:([0-9a-f]{32})",\n"manifest": ')
TAIL = b"}\n"
GENERATION = re.compile(rb'\{"format": "restoke", "version": \d{1,9}, "generation": (\d{1,18}), ')
FIELDS = ["format", "version", "generation", "created", "algorithm", "files", "tensors", "meta", "values", "rank_values"]


@final
@frozen
class Piece:
    """A chunk of a tensor, in the file of `rank` under the tensor's key."""

    rank: int
    box: Box


@final
@frozen
class TensorEntry:
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


@final
@frozen
class Manifest:
    """`files` are those of the ranks, in order; `meta`, `values` and `rank_values` are JSON as `plain.to_json` makes it."""

    generation: int
    created: str  # ISO 8601, with its offset from UTC
    files: tuple[FileEntry, ...]
    tensors: dict[str, TensorEntry]
    meta: Any = field(factory=dict)
    values: Any = field(factory=dict)
    rank_values: tuple[Any, ...] = ()
    algorithm: str = ALGORITHM

    @property
    def world_size(self) -> int:
        return len(self.files)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)

    def keys_of(self, rank: int) -> dict[str, Box]:
        """What the file of a rank holds."""
        return {key: piece.box for key, entry in self.tensors.items() for piece in entry.pieces if piece.rank == rank}


def file_name(rank: int, size: int) -> str:
    return f"rank-{rank:05d}-of-{size:05d}.safetensors"


def dump(manifest: Manifest) -> bytes:
    """The bytes of the manifest's file: JSON, whose first line is the checksum of the rest."""
    files = [
        {"name": file_name(rank, manifest.world_size), "bytes": entry.bytes, "checksum": entry.checksum}
        for rank, entry in enumerate(manifest.files)
    ]
    tensors = {
        key: {"shape": it.shape, "dtype": it.dtype, "chunks": [[p.rank, p.box.offsets, p.box.shape] for p in it.pieces]}
        for key, it in manifest.tensors.items()
    }
    contents = (FORMAT, VERSION, manifest.generation, manifest.created, manifest.algorithm, files, tensors)
    values = (manifest.meta, manifest.values, manifest.rank_values)
    body = json.dumps(dict(zip(FIELDS, (*contents, *values), strict=True)), allow_nan=False).encode()
    return b'{"checksum": "xxh3_128:%s",\n"manifest": %s%s' % (xxhash.xxh3_128_hexdigest(body).encode(), body, TAIL)


def read_body(folder: Path) -> bytes:
    """The manifest's JSON, its checksum proven. Raises ValueError that says what is wrong, and OSError."""
    path = folder / NAME
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{NAME} is {'not a plain file' if path.exists() or path.is_symlink() else 'missing'}")
    if path.stat().st_size > LIMIT:
        raise ValueError(f"{NAME} is larger than {LIMIT} bytes")
    data = path.read_bytes()
    head = HEAD.match(data)
    if head is None or not data.endswith(TAIL):
        raise ValueError(f"{NAME} does not begin or end as one of restoke does: it is foreign, damaged or cut off")
    body = data[head.end() : -len(TAIL)]
    if xxhash.xxh3_128_hexdigest(body).encode() != head[1]:
        raise ValueError(f"{NAME} does not match its checksum")
    return body


def generation_of(body: bytes) -> int:
    """Without parsing the rest. Raises ValueError."""
    found = GENERATION.match(body)
    return int(found[1]) if found else _refuse("it does not say its generation")


def parse(body: bytes) -> Manifest:
    """The manifest. Raises ValueError that says what is wrong."""
    try:
        data = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{NAME} is nested too deep") from None
    _version(data)
    _want(list(data) == FIELDS, f"{NAME} has fields {sorted(set(data) ^ set(FIELDS))} too many or too few")
    known = isinstance(data["algorithm"], str) and data["algorithm"] in ALGORITHMS
    _want(known, f"the checksum algorithm {str(data['algorithm'])[:40]!r} is not known")
    _want(_count(data["generation"]) and isinstance(data["created"], str), "its generation or time is no number or text")
    _want(datetime.fromisoformat(data["created"]).tzinfo is not None, "its time has no offset")
    _want(isinstance(data["files"], list) and isinstance(data["tensors"], dict), "its files or tensors are not listed")
    files = tuple(_file(item, rank, len(data["files"])) for rank, item in enumerate(data["files"]))
    tensors = {key: _tensor(key, item, len(files)) for key, item in data["tensors"].items()}
    own = data["rank_values"]
    _want(isinstance(own, list) and len(own) == len(files) > 0, "its values are not one per rank")
    values = (data["meta"], data["values"], tuple(own))
    manifest = Manifest(data["generation"], data["created"], files, tensors, *values, data["algorithm"])
    _fits(manifest)
    return manifest


def _refuse(what: str) -> NoReturn:
    raise ValueError(what)


def _want(right: object, what: str) -> None:
    if not right:
        raise ValueError(what)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    _want(len(found) == len(pairs), f"{NAME} has a key twice")
    return found


def _version(data: Any) -> None:
    _want(isinstance(data, dict) and data.get("format") == FORMAT, f"{NAME} is not one of restoke")
    right = type(data.get("version")) is int and data["version"] == VERSION
    _want(right, f"it is of format version {str(data.get('version'))[:20]}, and this restoke reads version {VERSION}")


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _counts(value: Any, what: str) -> tuple[int, ...]:
    _want(isinstance(value, list) and len(value) <= 64 and all(map(_count, value)), f"{what} is no list of sizes")
    return tuple(value)


def _file(item: Any, rank: int, size: int) -> FileEntry:
    _want(isinstance(item, dict) and item.keys() == {"name", "bytes", "checksum"}, f"file {rank} is not described")
    _want(item["name"] == file_name(rank, size), f"file {rank} is not named {file_name(rank, size)}")
    right = _count(item["bytes"]) and isinstance(item["checksum"], str)
    _want(right, f"the size or checksum of {item['name']} is no number or text")
    return FileEntry(item["bytes"], item["checksum"])


def _tensor(key: str, item: Any, files: int) -> TensorEntry:
    _want(isinstance(item, dict) and item.keys() == {"shape", "dtype", "chunks"}, f"{key} is not described")
    _want(isinstance(item["dtype"], str) and item["dtype"] in CODES, f"the dtype of {key} is not known")
    shape = _counts(item["shape"], f"the shape of {key}")
    extent = ITEMSIZE[item["dtype"]]
    for size in shape:
        extent *= max(size, 1)
    _want(extent < LARGEST, f"{key} is larger than anything")
    listed = isinstance(item["chunks"], list) and len(item["chunks"]) <= files
    _want(listed, f"the chunks of {key} are not listed, or are more than files")
    pieces = tuple(_piece(key, row, files) for row in item["chunks"])
    _want(len({piece.rank for piece in pieces}) == len(pieces), f"{key} is twice in one file")
    fault = untiled(shape, [piece.box for piece in pieces])
    _want(fault is None, f"{key}: {fault}")
    return TensorEntry(shape, item["dtype"], pieces)


def _piece(key: str, row: Any, files: int) -> Piece:
    _want(isinstance(row, list) and len(row) == 3 and _count(row[0]) and row[0] < files, f"a chunk of {key} is in no file")
    return Piece(row[0], Box(_counts(row[1], f"an offset of {key}"), _counts(row[2], f"a chunk's shape of {key}")))


def _fits(manifest: Manifest) -> None:
    """A chunk's bytes must be in its file; so no shape can ask for more memory than there are bytes."""
    held = [0] * len(manifest.files)
    for entry in manifest.tensors.values():
        for piece in entry.pieces:
            held[piece.rank] += piece.box.volume * ITEMSIZE[entry.dtype]
    for rank, (needed, entry_) in enumerate(zip(held, manifest.files, strict=True)):
        _want(needed <= entry_.bytes, f"{file_name(rank, len(held))} is smaller than its chunks")
