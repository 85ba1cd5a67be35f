"""Weights alone, in the files that other libraries read: one file, or shards with an index."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from restoke.errors import CheckpointError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
OURS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")


def save_weights(weights: Mapping[str, Tensor], folder: Path, shard_size: int | str, safe: bool) -> None:
    """Write them; files of an earlier save that these do not replace are deleted.

    Raises:
        CheckpointError: the folder is a file, or cannot be written, or the size is none.
    """
    name, ending = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    shards = split(weights, size_of(shard_size))
    files = {
        f"{name}.{ending}" if len(shards) == 1 else f"{name}-{i:05}-of-{len(shards):05}.{ending}": shard
        for i, shard in enumerate(shards, 1)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, shard in files.items():
            save_object({key: tensor.contiguous() for key, tensor in shard.items()}, folder / file, safe)
        written = set(files)
        if len(shards) > 1:
            index = f"{name}.{ending}.index.json"
            total = sum(tensor.nbytes for tensor in weights.values())
            places = {key: file for file, shard in files.items() for key in shard}
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
            _replace(folder / index, lambda path: path.write_text(text, encoding="utf-8"))
            written.add(index)
        for old in folder.iterdir():
            if OURS.fullmatch(old.name) and old.name not in written:
                old.unlink()
    except OSError as error:
        raise CheckpointError.of("save_directory", str(folder), f"it cannot be written ({error})", "another folder") from error


def split(weights: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """In order, in as many shards as it takes that none is larger, but for single tensors that are."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][key] = tensor
        size += tensor.nbytes
    return shards


def size_of(text: int | str) -> int:
    """Bytes. Raises CheckpointError: it is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", str(text).strip().upper())
    if match is None or match[2] not in UNITS or float(match[1]) <= 0:
        raise CheckpointError.of("max_shard_size", text, "it is no size", "such as 10GB, 500MB, or a number of bytes")
    return int(float(match[1]) * UNITS[match[2]])


def save_object(item: Any, path: Path, safe: bool) -> None:
    """Write it in place of what is there, which stays until it is written. Raises CheckpointError: it cannot be written."""
    if safe and not (isinstance(item, Mapping) and all(isinstance(value, Tensor) for value in item.values())):
        why = "safetensors hold a dict of tensors"
        raise CheckpointError.of("obj", type(item).__name__, why, "a dict of tensors, or safe_serialization=False")
    write: Callable[[Path], Any] = (lambda to: save_file(dict(item), to)) if safe else (lambda to: torch.save(item, to))
    _replace(path, write)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
