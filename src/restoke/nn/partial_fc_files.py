"""Class vectors from the files that insightface's Partial FC leaves, one per rank, into a head over any number of ranks.

Two layouts are known: `rank_N_softmax_weight.pt`, a tensor, and `checkpoint_gpu_N.pt`, a dictionary whose entry
`state_dict_softmax_fc` has the head's state. Both hold the rows of rank N, balanced, in rank order.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from restoke.distributed.messages import everyone
from restoke.distributed.shards import Shard
from restoke.errors import CheckpointError, RestokeError
from restoke.nn.registry import registered

NAMED = re.compile(r"(?:rank_(\d+)_softmax_weight|checkpoint_gpu_(\d+))\.pt")
STATE = "state_dict_softmax_fc"


def load_partial_fc(head: nn.Module, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
    """Fill the head's `weight` with the rows that the files hold. Every rank calls this, and reads what it needs.

    Nothing that a file says is run: it is read as tensors alone.

    Args:
        head: a `PartialFC`, `ParallelMarginLinear`, or another layer whose `weight` is cut along its first dimension.
        files: their folder, or their paths in the order of ranks.

    Raises:
        CheckpointError: on every rank, where a file lacks, is no such file, or their rows together are not the head's.
    """
    weight = head._parameters["weight"]
    assert weight is not None
    shard = registered(head, "weight", weight)
    error: RestokeError | None = None
    try:
        rows = _mine([_rows_of(path) for path in _paths(files)], weight, shard)
    except CheckpointError as found:
        error = found
    if shard is not None and not everyone(error is None, shard.group) and error is None:
        error = CheckpointError.of("files", files, "another rank could not read them", "files that all ranks see")
    if error is not None:
        raise error
    with torch.no_grad():
        weight.copy_(rows)


def _paths(files: Any) -> list[Path]:
    if not isinstance(files, (str, os.PathLike)):
        return [Path(path) for path in files]
    folder, found = Path(files), dict[int, Path]()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if named := NAMED.fullmatch(path.name):
            number = int(named[1] or named[2])
            if number in found:
                why = f"{found[number].name} and {path.name} are both of rank {number}"
                raise CheckpointError.of("files", str(folder), why, "the paths, in the order of ranks")
            found[number] = path
    if not found or sorted(found) != list(range(len(found))):
        why = f"it has the files of ranks {sorted(found) or 'none'}, named rank_N_softmax_weight.pt or checkpoint_gpu_N.pt"
        raise CheckpointError.of("files", str(folder), why, "a folder with those of every rank")
    return [found[number] for number in range(len(found))]


def _rows_of(path: Path) -> Tensor:
    """The tensor in the file, whose pages are read when they are copied."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        why = f"it cannot be read as tensors alone ({str(error).splitlines()[0]})"
        raise CheckpointError.of("files", str(path), why, "a file of Partial FC") from error
    for key in (STATE, "weight"):
        if isinstance(found, Mapping) and key in found:
            found = found[key]
    if not isinstance(found, Tensor) or found.ndim != 2:
        why = f"it holds no matrix of class vectors: neither a tensor, nor {STATE} with a weight"
        raise CheckpointError.of("files", str(path), why, "a file of Partial FC")
    return found


def _mine(parts: list[Tensor], weight: Tensor, shard: Shard | None) -> Tensor:
    """This rank's rows, of all that the files hold."""
    classes = weight.shape[0] if shard is None else shard.size
    start = 0 if shard is None else shard.start
    shapes = [tuple(part.shape) for part in parts]
    if sum(rows for rows, _ in shapes) != classes or any(width != weight.shape[1] for _, width in shapes):
        why = f"the head has {classes} classes of {weight.shape[1]} elements"
        raise CheckpointError.of("files", shapes, why, "the files of all ranks of a head of that size")
    mine, first = [], 0
    for part in parts:
        low, high = max(start, first), min(start + weight.shape[0], first + part.shape[0])
        if low < high:
            mine.append(part[low - first : high - first].to(weight.dtype))
        first += part.shape[0]
    return torch.cat(mine) if mine else weight.new_empty(weight.shape)
