"""Safetensors files written piece by piece from tensors that are read piece by piece, and put in place by renaming."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from restoke.checkpoint.disk import Disk
from restoke.checkpoint.export_plan import INDEX, WEIGHTS, Item, boxes
from restoke.checkpoint.weights import Weights
from restoke.errors import CheckpointError

PIECE = 32 << 20  # bytes of a tensor that are in memory at once
STAGED = ".export-"
SHARDS = "model-*-of-*.safetensors"
Progress = Callable[[int, int], None]


def file_pieces(
    items: Sequence[Item], weights: Weights, metadata: Mapping[str, str], written: Callable[[int], None]
) -> Iterator[bytes | memoryview]:
    """The bytes of one safetensors file. Raises CheckpointError where a value does not fit its new dtype."""
    order = sorted(items, key=lambda item: -item.dtype.itemsize)  # so that each tensor is aligned
    header: dict[str, object] = {"__metadata__": {**metadata, "format": "pt"}}
    end = 0
    for item in order:
        start, end = end, end + item.bytes
        header[item.name] = {"dtype": item.code, "shape": item.shape_told, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for item in order:
        for box in boxes(item.shape, PIECE // max(item.dtype.itemsize, weights.dtype(item.key).itemsize)):
            yield _bytes(item, weights.read(item.key, box.offsets, box.shape))
        written(item.bytes)


def _bytes(item: Item, piece: Tensor) -> memoryview:
    cast = piece.to(item.dtype)
    if cast is not piece and bool((cast.isinf() & piece.isfinite()).any()):
        why = f"{item.name} has values beyond its range"
        raise CheckpointError.of("dtype", str(item.dtype).removeprefix("torch."), why, "bfloat16 or float32")
    return memoryview(cast.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # arrays are buffers


def index_bytes(files: Mapping[str, Sequence[Item]]) -> bytes:
    """The index of shards, as transformers writes and reads it."""
    total = sum(item.bytes for items in files.values() for item in items)
    weight_map = {item.name: name for name, items in files.items() for item in items}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2).encode() + b"\n"


def existing(folder: Path) -> list[Path]:
    """An export that is there already: its index first, since without it no shard is read."""
    paths = [folder / INDEX, folder / WEIGHTS, *sorted(folder.glob(SHARDS))]
    return [path for path in paths if path.exists() or path.is_symlink()]


@contextmanager
def staged(beside: Path, disk: Disk) -> Iterator[Path]:
    """A hidden folder in `beside`; what is left in it at the end is removed."""
    folder = beside / f"{STAGED}{secrets.token_hex(4)}"
    disk.make(folder)
    try:
        yield folder
    finally:
        with suppress(OSError):
            disk.remove(folder)


def put_file(source: Path, target: Path, disk: Disk) -> None:
    """Give it its name, which may have been another's."""
    disk.rename(source, target)
    disk.sync(target.parent)


def put_folder(source: Path, target: Path, names: Sequence[str], disk: Disk) -> None:
    """A new folder at once. In one that is there, no moment shows a mixture: without an index, no shard is read."""
    if not target.exists():
        put_file(source, target, disk)
        return
    stale = [path for path in existing(target) if path.name not in names]
    if INDEX in names and (target / INDEX).exists():
        _drop(target / INDEX, disk)
    for name in sorted(names, key=lambda name: name == INDEX):
        disk.rename(source / name, target / name)
    disk.sync(target)
    for path in stale:
        _drop(path, disk)
    disk.sync(target)


def _drop(file: Path, disk: Disk) -> None:
    disk.before("remove", file)
    file.unlink()
