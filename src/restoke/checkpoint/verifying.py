"""Every checksum of every checkpoint in a folder, as loading would take it, without loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from attrs import frozen

from restoke.checkpoint.find import candidates
from restoke.checkpoint.generations import STAGED, faulty, present
from restoke.checkpoint.manifest import Manifest, parse, read_body
from restoke.checkpoint.opening import Opened
from restoke.checkpoint.places import placed
from restoke.errors import CheckpointError

Progress = Callable[[str, int], None]


@final
@frozen
class Verdict:
    """One checkpoint, read whole: `faults` has a line for each file that is not what was saved."""

    tag: str
    generation: int | None
    files: int
    bytes: int
    faults: tuple[str, ...]

    @classmethod
    def of(cls, tag: str, manifest: Manifest | None, faults: Sequence[str]) -> Verdict:
        if manifest is None:
            return cls(tag, None, 0, 0, tuple(faults))
        return cls(tag, manifest.generation, manifest.world_size, manifest.bytes, tuple(faults))


def to_read(path: Path, tag: str | None) -> int:
    """The bytes that `verified` will read. Raises CheckpointError where there is no checkpoint."""
    return sum(manifest.bytes for _, _, manifest, _ in _manifests(path, tag) if manifest is not None)


def verified(path: Path, tag: str | None, progress: Progress) -> Iterator[Verdict]:
    """The verdict on each checkpoint, newest first, or on the one asked for; `progress` gets tag and bytes, file by file.

    Raises:
        CheckpointError: there is no checkpoint, or not the one asked for.
    """
    for name, place, manifest, fault in _manifests(path, tag):
        verdict = Verdict.of(name, None, [fault]) if manifest is None else _verdict(name, place, manifest, progress)
        if not verdict.faults or place.exists():  # else a save deleted it meanwhile
            yield verdict


def _verdict(name: str, place: Path, manifest: Manifest, progress: Progress) -> Verdict:
    verdict = Verdict.of(name, manifest, _faults(name, place, manifest, progress))
    now, _ = _manifest(place)
    if verdict.faults and now is not None and now.generation != manifest.generation:  # a save replaced it meanwhile
        return _verdict(name, place, now, progress)
    return verdict


def _faults(name: str, place: Path, manifest: Manifest, progress: Progress) -> list[str]:
    found = []
    for rank, entry in enumerate(manifest.files):
        found.append(faulty(place, manifest, rank))
        progress(name, entry.bytes)
    return [fault for fault in found if fault] or _undecodable(place, name, manifest)


def unfinished(path: Path) -> list[str]:
    """Folders that a save is writing to, or has left behind: the next save removes these."""
    folder, _ = placed(path, None)
    return sorted(child.name for child in folder.iterdir() if child.is_dir() and child.name.startswith(STAGED))


def _manifests(path: Path, tag: str | None) -> list[tuple[str, Path, Manifest | None, str]]:
    folder, tag = placed(path, tag)
    candidates(folder, tag)
    found = [(name, place, *_manifest(place)) for name, place in present(folder).items() if tag in (None, name)]
    return sorted(found, key=lambda item: (-item[2].generation if item[2] else 1, item[0]))


def _manifest(place: Path) -> tuple[Manifest | None, str]:
    try:
        return parse(read_body(place)), ""
    except (ValueError, OSError) as error:
        return None, str(error)


def _undecodable(place: Path, name: str, manifest: Manifest) -> list[str]:
    """What is wrong with the values, where every file is right."""
    try:
        opened = Opened(place, name, manifest)
        list(opened.rank_values)
    except CheckpointError as error:
        return [f"manifest.json: {error.problems[0].why}"]
    return []
