"""What the commands on checkpoints print for programs. `format` counts up when a field changes its meaning or goes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from restoke.checkpoint.manifest import TensorEntry
from restoke.checkpoint.overview import Overview, aliases_of, by_kind, listed, matching, size_of

if TYPE_CHECKING:
    from restoke.checkpoint.exporting import Exported
    from restoke.checkpoint.verifying import Verdict
    from restoke.checkpoint.weights import Weights

FORMAT = 1


def inspected(folder: Path, found: Sequence[Overview], chosen: Overview | None, detail: str, match: str) -> str:
    """One object: the checkpoints, and one of them as far as `detail` says."""
    told: dict[str, Any] = {"folder": str(folder), "checkpoints": [_row(item) for item in found]}
    if detail != "list":
        told["checkpoint"] = None if chosen is None else _one(chosen, detail, match)
    return _text(told)


def verdicts(folder: Path, found: Sequence[Verdict], left: Sequence[str]) -> str:
    """One object: the verdict on each, and what unfinished saves left behind."""
    rows = [
        {
            "tag": it.tag,
            "generation": it.generation,
            "files": it.files,
            "bytes": it.bytes,
            "good": not it.faults,
            "faults": it.faults,
        }
        for it in found
    ]
    return _text({"folder": str(folder), "good": all(not it.faults for it in found), "checkpoints": rows, "unfinished": left})


def exported(done: Exported) -> str:
    """One object: the files, and what they hold."""
    return _text({"files": list(map(str, done.files)), "tensors": done.tensors, "bytes": done.bytes, "notes": done.notes})


def weighed(weights: Weights, match: str) -> str:
    """One object: the tensors of files of weights, by the names that a model has them by."""
    tensors = {it.name: {"shape": it.shape, "dtype": it.dtype, "bytes": it.bytes} for it in listed(weights, match)}
    aliases = aliases_of(weights, match)
    return _text({"file": str(weights.path), "notes": weights.notes, "aliases": aliases, "tensors": tensors})


def _text(told: Mapping[str, Any]) -> str:
    return json.dumps({"format": FORMAT, **told}, allow_nan=False) + "\n"


def _row(item: Overview) -> dict[str, Any]:
    manifest = item.manifest
    return {
        "tag": item.tag,
        "generation": manifest.generation if manifest else None,
        "created": manifest.created if manifest else None,
        "world_size": manifest.world_size if manifest else None,
        "steps": item.meta.get("steps"),
        "bytes": manifest.bytes if manifest else None,
        "fault": item.fault or None,
    }


def _one(item: Overview, detail: str, match: str) -> dict[str, Any]:
    assert item.manifest is not None
    tensors = matching(item.manifest, match)
    told = _row(item) | {"meta": item.meta, "optimizer": item.optimizer}
    told["kinds"] = {kind: {"tensors": len(held), "bytes": sum(map(size_of, held))} for kind, held in by_kind(tensors).items()}
    if detail != "summary":
        told["tensors"] = {key: _tensor(entry, detail == "chunks") for key, entry in tensors.items()}
    return told


def _tensor(entry: TensorEntry, chunks: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"shape": entry.shape, "dtype": entry.dtype, "bytes": size_of(entry)}
    if chunks:
        told["chunks"] = [{"rank": it.rank, "offsets": it.box.offsets, "shape": it.box.shape} for it in entry.pieces]
    return told
