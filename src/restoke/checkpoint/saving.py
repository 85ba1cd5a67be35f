"""Saving: every rank writes its own chunks beside, then the main rank puts the whole in place by one rename."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from attrs import frozen
from torch import Tensor

from restoke.checkpoint.agree import alone, together
from restoke.checkpoint.container import write_tensors
from restoke.checkpoint.disk import DISK, Disk, sole_writer
from restoke.checkpoint.draft import Draft
from restoke.checkpoint.formats import FileEntry
from restoke.checkpoint.generations import REPLACED, STAGED, discard, is_checkpoint, next_generation, recover, retain
from restoke.checkpoint.manifest import NAME, Manifest, TensorEntry, dump, file_name
from restoke.checkpoint.messages import COLLECTIVES, Messages
from restoke.checkpoint.plan import Row, assign
from restoke.comm import gather_json
from restoke.errors import CheckpointError
from restoke.parts import Captured
from restoke.world import World

TAG = re.compile(r"[^./\\][^/\\]{0,99}")


def write(
    folder: Path | str,
    tag: str,
    captured: Captured,
    world: World,
    *,
    meta: Mapping[str, Any],
    keep: int | None = None,
    disk: Disk = DISK,
) -> Path:
    """Save `captured` as `folder/tag`. Every rank calls this; a crash at any moment leaves the old state or the new one.

    Args:
        folder: where the run's checkpoints are; shared by all ranks. It is made if it is missing.
        tag: the name of this one. One of the same tag is replaced.
        captured: what this rank holds. Chunks that several ranks hold are written once. Values are those of rank 0, except
            that a key which begins with `rank/` has a value on each.
        meta: plain values that describe the checkpoint, without tensors.
        keep: delete all but the newest so many of the folder's checkpoints, once this one is in place. None keeps all.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: on every rank the same; what was saved before is untouched.
    """
    return commit(agree_on(folder, tag, captured, world, meta=meta, keep=keep), world, disk)


@final
@frozen
class Agreed:
    """What a save will write: all ranks have agreed to it, and nothing is written yet."""

    target: Path
    keep: int | None
    draft: Draft
    tensors: dict[str, TensorEntry]
    own_values: tuple[Any, ...]  # by rank
    own: Callable[[], Mapping[str, Tensor]]  # what this rank writes, or the reason why it cannot


def agree_on(
    folder: Path | str, tag: str, captured: Captured, world: World, *, meta: Mapping[str, Any], keep: int | None
) -> Agreed:
    """The arguments are those of `write`. Every rank calls this, in the thread that trains.

    Raises:
        CheckpointError: on every rank the same.
    """
    target = Path(folder).absolute() / str(tag)  # a thread may write it when the working directory is another one
    draft, said = together(lambda: _draft(tag, keep, captured, meta, world), world, target)
    if len({item["tag"] for item in said}) > 1:
        raise CheckpointError.of("tag", sorted({item["tag"] for item in said}), "the ranks disagree", "give the same on each")
    tensors = assign(_rows(draft, said, world))
    mine = [key for key, entry in tensors.items() if any(piece.rank == world.rank for piece in entry.pieces)]
    own = {key: draft.tensors[key] for key in mine}
    return Agreed(target, keep, draft, tensors, tuple(item["own_values"] for item in said), lambda: own)


def commit(agreed: Agreed, world: World, disk: Disk, by: Messages = COLLECTIVES) -> Path:
    """Write it. Every rank calls this, in whatever thread its messages allow.

    Raises:
        CheckpointError: on every rank the same; what was saved before is untouched.
    """
    target, folder = agreed.target, agreed.target.parent
    with ExitStack() as held:
        name, generation = alone(lambda: _stage(folder, target, held, disk), world, target, by)
        try:
            _, files = together(lambda: _write_own(folder / name, agreed.own(), world, disk), world, target, by)
            manifest = Manifest(
                generation=generation,
                created=datetime.now(UTC).isoformat(),
                files=tuple(FileEntry(*file) for file in files),
                tensors=agreed.tensors,
                meta=agreed.draft.meta,
                values=agreed.draft.values,
                rank_values=agreed.own_values,
            )
            alone(lambda: _publish(folder / name, target, manifest, disk), world, target, by)
        except BaseException:
            if world.is_main:
                _abandon(folder / name, disk)
            raise
        alone(lambda: _tidy(target, agreed.keep, disk), world, target, by)
    return target


def _draft(tag: Any, keep: int | None, captured: Captured, meta: Mapping[str, Any], world: World) -> tuple[Draft, Any]:
    if not isinstance(tag, str) or not TAG.fullmatch(tag) or not tag.isprintable():
        why = "a tag is the name of a folder: printable, up to 100 characters, without slashes or a leading dot"
        raise CheckpointError.of("tag", tag, why, "such as 'step-100'")
    if keep is not None and (type(keep) is not int or keep < 1):
        raise CheckpointError.of("keep", keep, "at least the newest checkpoint is kept", "keep=1 or more, or None for all")
    draft = Draft.of(captured, meta, world)
    return draft, {"tag": tag, "digest": draft.digest(), "value_rows": draft.value_rows, "own_values": draft.own_values}


def _rows(draft: Draft, said: list[Any], world: World) -> list[list[Row]]:
    """What each rank holds. Ranks that hold the same chunks send their list once; where all do, nobody sends it."""
    digests = [item["digest"] for item in said]
    sent = [draft.rows] * world.size
    if len(set(digests)) > 1:
        first = digests.index(digests[world.rank])
        sent = gather_json(draft.rows if first == world.rank else [], world)
    return [sent[digests.index(item["digest"])] + item["value_rows"] for item in said]


def _stage(folder: Path, target: Path, held: ExitStack, disk: Disk) -> tuple[str, int]:
    """A hidden folder to write into, and the number of the new generation; the lock is held until `held` closes."""
    disk.make(folder)
    recover(folder, held.enter_context(sole_writer(folder)), disk)
    if os.path.lexists(target) and (target.is_symlink() or not is_checkpoint(target)):
        why = "something is there that is no checkpoint, and would be lost"
        raise CheckpointError.of("tag", target.name, why, "another tag or folder")
    generation = next_generation(folder)
    staged = folder / f"{STAGED}{secrets.token_hex(4)}"
    disk.make(staged)
    return staged.name, generation


def _write_own(staged: Path, own: Mapping[str, Tensor], world: World, disk: Disk) -> tuple[None, Any]:
    entry = write_tensors(staged / file_name(world.rank, world.size), own, disk)
    return None, [entry.bytes, entry.checksum]


def _publish(staged: Path, target: Path, manifest: Manifest, disk: Disk) -> None:
    """From here on the new one is the good one: the manifest, last of its files, and then its name."""
    disk.write(staged / NAME, [dump(manifest)])
    disk.sync(staged)
    aside = target.parent / f"{REPLACED}{target.name}"
    replaces = target.exists()
    if replaces:
        disk.rename(target, aside)
    try:
        disk.rename(staged, target)
    except OSError:
        if replaces:
            disk.rename(aside, target)
        raise
    try:
        disk.sync(target.parent)
    except OSError as error:
        why = f"{target.name} is saved, but a loss of power may still undo it ({error.strerror or error})"
        raise CheckpointError.of("checkpoint", str(target), why, "save again once the disk is well") from error


def _tidy(target: Path, keep: int | None, disk: Disk) -> None:
    try:
        aside = target.parent / f"{REPLACED}{target.name}"
        if aside.exists():
            discard(aside, disk)
        if keep is not None:
            retain(target.parent, keep, disk)
    except OSError as error:
        why = f"{target.name} is saved, but an older checkpoint could not be deleted ({error.strerror or error})"
        raise CheckpointError.of("keep", keep, why, "delete it by hand") from error


def _abandon(staged: Path, disk: Disk) -> None:
    with suppress(OSError):  # the next save tries again
        disk.remove(staged)
