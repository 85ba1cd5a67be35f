"""A checkpoint's weights as the wider ecosystem reads them: one safetensors file, or shards of a size with their index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from attrs import frozen

from restoke.checkpoint.disk import DISK, Disk
from restoke.checkpoint.export_files import Progress, existing, file_pieces, index_bytes, put_file, put_folder, staged
from restoke.checkpoint.export_plan import INDEX, WEIGHTS, Item, aliases_of, items_of, split, target_dtype
from restoke.checkpoint.generations import is_checkpoint
from restoke.checkpoint.sizes import parse_size
from restoke.checkpoint.weights import Weights, open_weights
from restoke.errors import CheckpointError

SUFFIX = ".safetensors"


@final
@frozen
class Exported:
    """What was written: the files, the number and bytes of their tensors, and a line for each liberty that was taken."""

    files: tuple[Path, ...]
    tensors: int
    bytes: int
    notes: tuple[str, ...]


def _silent(written: int, of: int) -> None:
    pass


def export(
    path: Path | str,
    out: Path | str,
    tag: str | None = None,
    *,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    ema: bool = False,
    tied: bool = False,
    force: bool = False,
    progress: Progress = _silent,
    disk: Disk = DISK,
) -> Exported:
    """Write the weights of a checkpoint for other programs, under the model's own names. One process calls this.

    Tensors are read and written in pieces: a model larger than the memory can be exported.

    Args:
        path: a folder that was saved into, one checkpoint of it, or any file that `open_weights` reads.
        out: a folder, which gets `model.safetensors`; or a file, where the name ends so.
        tag: which checkpoint; None takes the newest good one.
        shard_size: the most bytes of tensors in a file, such as "5GB"; more of them make `model-00001-of-0000N.safetensors`
            and an index. None writes one file.
        dtype: cast floating-point tensors to it: bfloat16, float16, float32 or float64. Those of 8 bits and fewer stay.
        ema: the averaged weights, where they were kept.
        tied: write tensors that share memory under each of their names; else once, and the other names go to the metadata.
        force: replace an export that is there.
        progress: called after each tensor with its bytes, and the bytes of all.
        disk: the layer of file operations.

    Raises:
        CheckpointError: there is nothing to export or something in the way, a value is beyond the dtype's range, or the
            disk refuses. What was there before is untouched.
    """
    out, cast = Path(out), target_dtype(dtype)
    limit = None if shard_size is None else parse_size(shard_size, "shard_size")
    with _disk_errors(out):
        _check_target(out, limit is not None, force)
    weights = open_weights(path, tag=tag, ema=ema)
    items = items_of(weights, cast, tied)
    if not items:
        raise CheckpointError.of("path", str(path), "it holds no weights", "a checkpoint of a model that has parameters")
    files = split(items, limit)
    with _disk_errors(out):
        written = _write(out, files, weights, {} if tied else aliases_of(weights), progress, disk)
    return Exported(tuple(written), len(items), sum(item.bytes for item in items), tuple(_notes(weights)))


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"it cannot be written: {error.strerror or error}"
        raise CheckpointError.of("out", str(out), why, "another place, or free some space") from error


def _check_target(out: Path, sharded: bool, force: bool) -> None:
    if is_checkpoint(out):
        raise CheckpointError.of("out", str(out), "it is a checkpoint of restoke", "a folder of its own")
    if _is_file(out):
        if sharded:
            raise CheckpointError.of("shard_size", "given", f"{out.name} is one file", "a folder as out=, or no shard_size")
        found = [out] if out.exists() else []
    elif out.exists() and not out.is_dir():
        raise CheckpointError.of("out", str(out), "it is a file", f"a folder, or a name that ends with {SUFFIX}")
    else:
        found = existing(out)
    if found and not force:
        raise CheckpointError.of("out", str(out), f"{found[0].name} is there already", "another place, or --force (force=True)")


def _is_file(out: Path) -> bool:
    return out.suffix == SUFFIX and not out.is_dir()


def _write(
    out: Path, files: Mapping[str, Sequence[Item]], weights: Weights, aliases: Mapping[str, str], progress: Progress, disk: Disk
) -> list[Path]:
    total = sum(item.bytes for items in files.values() for item in items)
    beside = out if out.is_dir() else out.absolute().parent
    with staged(beside, disk) as stage:
        for name, items in files.items():
            names = {item.name for item in items}
            metadata = {alias: owner for alias, owner in aliases.items() if owner in names}
            disk.write(stage / name, file_pieces(items, weights, metadata, lambda written: progress(written, total)))
        if len(files) > 1:
            disk.write(stage / INDEX, [index_bytes(files)])
        disk.sync(stage)
        if _is_file(out):
            put_file(stage / WEIGHTS, out, disk)
            return [out]
        names_ = [*files, *([INDEX] if len(files) > 1 else [])]
        put_folder(stage, out, names_, disk)
        return [out / name for name in names_]


def _notes(weights: Weights) -> list[str]:
    extra = weights.values["model"].get("extra", {})
    left = [f"{name} is no tensor: it is left out" for name in extra]
    return [*weights.notes, *left]
