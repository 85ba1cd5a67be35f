"""The checkpoints of a folder: which there are, which is newest, what a crash left behind, and which are deleted."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, final

from attrs import evolve, frozen
from safetensors import SafetensorError, safe_open

from restoke.checkpoint.disk import Disk
from restoke.checkpoint.formats import CODES, checksum
from restoke.checkpoint.manifest import Manifest, file_name, generation_of, parse, read_body
from restoke.checkpoint.tiling import Box
from restoke.errors import CheckpointError

if TYPE_CHECKING:
    from restoke.checkpoint.holding import Held

STAGED = ".tmp-"  # being written, or being deleted: nothing reads these
REPLACED = ".old-"  # moved aside while its successor takes its name; without a successor it is the good one


@final
@frozen
class Entry:
    """One checkpoint of a folder. `good` is None where its files were not read; `fault` says what is wrong with it."""

    tag: str
    generation: int | None = None
    created: str | None = None  # ISO 8601
    world_size: int | None = None
    bytes: int = 0
    good: bool | None = None
    fault: str = ""


def listing(folder: Path | str, verify: bool = False) -> list[Entry]:
    """The folder's checkpoints, newest first, then those whose manifest is damaged. With `verify` every byte is read.

    Raises:
        CheckpointError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError.of("folder", str(folder), "there is no such folder", "the folder that was saved into")
    entries = [_entry(tag, path, verify) for tag, path in present(folder).items()]
    return sorted(entries, key=lambda entry: (-(entry.generation or 0), entry.tag))


def _entry(tag: str, path: Path, verify: bool) -> Entry:
    size = sum(child.lstat().st_size for child in path.iterdir())
    entry = Entry(tag, bytes=size)
    try:
        manifest = parse(read_body(path))
        entry = evolve(entry, generation=manifest.generation, created=manifest.created, world_size=manifest.world_size)
        faults = [faulty(path, manifest, rank) for rank in range(manifest.world_size)] if verify else []
    except (ValueError, OSError) as error:
        return evolve(entry, good=False, fault=str(error))
    fault = next((fault for fault in faults if fault), "")
    return evolve(entry, good=not fault if verify else None, fault=fault)


def present(folder: Path) -> dict[str, Path]:
    """Where each tag is, good or damaged. One that was being replaced when the process died is where it was moved to."""
    found = {path.name: path for path in _folders(folder) if not path.name.startswith(".") and is_checkpoint(path)}
    for path in _folders(folder):
        if path.name.startswith(REPLACED):
            found.setdefault(path.name.removeprefix(REPLACED), path)
    return found


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink())


def is_checkpoint(path: Path) -> bool:
    """Whether restoke wrote it, however damaged it is by now."""
    if not path.is_dir():
        return False
    try:
        read_body(path)
    except (ValueError, OSError):
        return any(file.is_file() for file in path.glob("rank-*-of-*.safetensors"))  # a tag may be called so, too
    return True


def ordered(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The tags whose manifest is good, newest first, and what is wrong with the others."""
    generations: dict[str, int] = {}
    faults: dict[str, str] = {}
    for tag, path in present(folder).items():
        try:
            generations[tag] = generation_of(read_body(path))
        except (ValueError, OSError) as error:
            faults[tag] = str(error)
    return sorted(generations, key=lambda tag: -generations[tag]), faults


def next_generation(folder: Path) -> int:
    tags, _ = ordered(folder)
    return generation_of(read_body(present(folder)[tags[0]])) + 1 if tags else 1


def faulty(path: Path, manifest: Manifest, rank: int, held: Held | None = None) -> str | None:
    """What is wrong with a rank's file: its size, its checksum, or what it holds. None where nothing is.

    Its tensors are kept in `held`, where that is given.
    """
    name, entry = file_name(rank, manifest.world_size), manifest.files[rank]
    file = path / name
    try:
        if file.is_symlink() or not file.is_file():
            return f"{name} is {'not a plain file' if file.exists() or file.is_symlink() else 'missing'}"
        if file.stat().st_size != entry.bytes:
            return f"{name} has {file.stat().st_size} of {entry.bytes} bytes"
        boxes = manifest.keys_of(rank)
        if _checksum(file, rank, boxes, manifest, held) != entry.checksum:
            return f"{name} does not match its checksum"
        return _contents(file, boxes, manifest)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror or error})"


def _checksum(file: Path, rank: int, boxes: Mapping[str, Box], manifest: Manifest, held: Held | None) -> str:
    if held is None:
        return checksum(file, manifest.algorithm)
    wanted = {key: (box, manifest.tensors[key].dtype) for key, box in boxes.items()}
    return held.checksum(file, manifest.algorithm, rank, wanted)


def _contents(file: Path, boxes: dict[str, Box], manifest: Manifest) -> str | None:
    try:
        with safe_open(file, "pt") as opened:
            if set(opened.keys()) != boxes.keys():
                return f"{file.name} holds other tensors than the manifest says"
            for key, box in boxes.items():
                held = opened.get_slice(key)
                if (tuple(held.get_shape()), held.get_dtype()) != (box.shape, CODES[manifest.tensors[key].dtype]):
                    return f"{file.name} holds {key} with another shape or dtype than the manifest says"
    except SafetensorError as error:
        return f"{file.name} is no safetensors file ({error})"
    return None


def discard(path: Path, disk: Disk) -> None:
    """Delete a folder such that it is there as a whole or not at all: what is half deleted must not look like a checkpoint."""
    doomed = path.parent / f"{STAGED}{secrets.token_hex(4)}"
    disk.rename(path, doomed)
    disk.sync(path.parent)
    disk.remove(doomed)


def recover(folder: Path, alone: bool, disk: Disk) -> None:
    """Put right what a writer that died left behind: `alone` says that no other one can be at work."""
    for path in list(_folders(folder)):
        if path.name.startswith(STAGED) and alone:
            disk.remove(path)
        elif path.name.startswith(REPLACED):
            home = folder / path.name.removeprefix(REPLACED)
            if home.exists():
                discard(path, disk)
            else:
                disk.rename(path, home)
                disk.sync(folder)


def retain(folder: Path, keep: int, disk: Disk) -> None:
    """Delete all but the newest `keep` checkpoints; what has no good manifest is left alone."""
    tags, _ = ordered(folder)
    for tag in tags[keep:]:
        discard(folder / tag, disk)
