"""Saving: every rank writes its own chunks beside, then the main rank puts the whole in place by one rename."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from restoke.checkpoint.agree import alone, together
from restoke.checkpoint.container import FileEntry, write_tensors
from restoke.checkpoint.disk import DISK, Disk, sole_writer
from restoke.checkpoint.draft import Draft
from restoke.checkpoint.generations import REPLACED, STAGED, discard, is_checkpoint, next_generation, recover, retain
from restoke.checkpoint.manifest import NAME, Manifest, dump, file_name
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
    folder, target = Path(folder), Path(folder) / str(tag)
    draft, said = together(lambda: _draft(tag, keep, captured, meta, world), world, target)
    if len({item["tag"] for item in said}) > 1:
        raise CheckpointError.of("tag", sorted({item["tag"] for item in said}), "the ranks disagree", "give the same on each")
    tensors = assign(_rows(draft, said, world))
    with ExitStack() as held:
        name, generation = alone(lambda: _stage(folder, target, held, disk), world, target)
        try:
            _, files = together(lambda: _write_own(folder / name, draft, tensors, world, disk), world, target)
            manifest = Manifest(
                generation=generation,
                created=datetime.now(UTC).isoformat(),
                files=tuple(FileEntry(*file) for file in files),
                tensors=tensors,
                meta=draft.meta,
                values=draft.values,
                rank_values=tuple(item["own_values"] for item in said),
            )
            alone(lambda: _publish(folder / name, target, manifest, disk), world, target)
        except BaseException:
            if world.is_main:
                _abandon(folder / name, disk)
            raise
        alone(lambda: _tidy(target, keep, disk), world, target)
    return target


def _draft(tag: str, keep: int | None, captured: Captured, meta: Mapping[str, Any], world: World) -> tuple[Draft, Any]:
    if not TAG.fullmatch(tag) or not tag.isprintable():
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
    if target.exists() and not is_checkpoint(target):
        why = "something is there that is no checkpoint, and would be lost"
        raise CheckpointError.of("tag", target.name, why, "another tag or folder")
    generation = next_generation(folder)
    staged = folder / f"{STAGED}{secrets.token_hex(4)}"
    disk.make(staged)
    return staged.name, generation


def _write_own(staged: Path, draft: Draft, manifest_tensors: Mapping[str, Any], world: World, disk: Disk) -> tuple[None, Any]:
    own = [key for key, entry in manifest_tensors.items() if any(piece.rank == world.rank for piece in entry.pieces)]
    entry = write_tensors(staged / file_name(world.rank, world.size), {key: draft.tensors[key] for key in own}, disk)
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
    disk.sync(target.parent)


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
