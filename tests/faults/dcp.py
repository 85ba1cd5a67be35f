"""A control: torch's own checkpoint, saved twice into one folder, which the harness must catch at mixing generations."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from tests.faults.forks import in_ranks
from tests.faults.saves import NEW, OLD
from tests.faults.trials import Trial

KEYS = [f"tensor {i}" for i in range(4)]


def filled(mark: float) -> dict[str, Any]:
    return {key: torch.full((8,), mark) for key in KEYS}


def save(folder: Path, world: Any, mark: float) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings(action="ignore"):  # that it overwrites, which is the point
        dcp.save(filled(mark), storage_writer=dcp.FileSystemWriter(folder, overwrite=True))


def prepare(folder: Path) -> None:
    ends = in_ranks(2, lambda world: save(folder, world, OLD))
    assert all(end.code == 0 for end in ends), ends


def act(folder: Path, world: Any) -> None:
    save(folder, world, NEW)


def look(folder: Path) -> set[float]:
    import torch.distributed.checkpoint as dcp

    found = filled(0.0)
    with warnings.catch_warnings(action="ignore"):  # that it is one process
        dcp.load(found, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return {mark for tensor in found.values() for mark in tensor.tolist()}


TRIAL = Trial(prepare, act, look, ranks=2)


def warmed(function: Any, *args: Any) -> Any:
    """In the warm process, which then has imported it for all of its forks."""
    import torch.distributed.checkpoint  # noqa: F401

    return function(*args)
