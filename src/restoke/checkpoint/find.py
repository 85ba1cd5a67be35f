"""Which checkpoints of a folder could be loaded; where there is none, what the folder is instead."""

from __future__ import annotations

from pathlib import Path

from restoke.checkpoint.generations import is_checkpoint, ordered, present
from restoke.checkpoint.standing import TRIES, names
from restoke.errors import CheckpointError, nearest

Candidates = tuple[list[tuple[str, str]], dict[str, str], dict[str, int]]
TORCH_FILES = (".pt", ".pth", ".ckpt", ".bin")
UNSAFE = "if you trust where it came from: restoke.checkpoint.read_stoke(path, names, optimizer), which runs code from the file"


def candidates(folder: Path, tag: str | None) -> Candidates:
    """[tag, name of its folder], best first; what is wrong with those whose manifest is damaged; and what is in the folder.

    Raises:
        CheckpointError: there is nothing that could be loaded.
    """
    _check_folder(folder)
    for _ in range(TRIES):
        before = names(folder)
        try:
            found: Candidates | CheckpointError = (*_candidates(folder, tag), before)
        except CheckpointError as error:
            found = error
        if names(folder) == before:
            break  # else a save was at work, and what was seen may never have been there at one time
    if isinstance(found, CheckpointError):
        raise found
    return found


def _candidates(folder: Path, tag: str | None) -> tuple[list[tuple[str, str]], dict[str, str]]:
    paths = present(folder)
    if tag is not None:
        if not isinstance(tag, str):
            raise CheckpointError.of("tag", tag, "a tag is the name of a folder, and so a text", "such as 'step-100'")
        if tag not in paths:
            raise _no_such_tag(folder, tag, list(paths))
        return [(tag, paths[tag].name)], {}
    tags, faults = ordered(folder)
    if not tags and not faults:
        raise _nothing_in(folder)
    return [(found, paths[found].name) for found in tags if found in paths], faults


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        kind = "a file of torch.save, which cannot be read without unpickling" if _is_torch_file(folder) else "a single file"
        remedy = UNSAFE if _is_torch_file(folder) else "the folder that was saved into"
        raise CheckpointError.of("folder", str(folder), f"it is {kind}", remedy)
    if not folder.is_dir():
        raise CheckpointError.of("folder", str(folder), "there is no such folder", "the folder that was saved into")
    if is_checkpoint(folder):
        remedy = f"folder={str(folder.parent)!r}, tag={folder.name!r}"
        raise CheckpointError.of("folder", str(folder), "it is a checkpoint itself", remedy)


def _is_torch_file(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4)
    return path.suffix in TORCH_FILES or head.startswith((b"PK\x03\x04", b"\x80\x02"))


def _no_such_tag(folder: Path, tag: str, tags: list[str]) -> Exception:
    if (folder / tag).is_file() and _is_torch_file(folder / tag):
        return CheckpointError.of("tag", tag, "it is a file of torch.save, which cannot be read without unpickling", UNSAFE)
    if (folder / tag).exists():
        remedy = nearest(tag, tags) if tags else "another tag"
        return CheckpointError.of("tag", tag, "what is there is no checkpoint of restoke", remedy)
    if not tags:
        return _nothing_in(folder)
    return CheckpointError.of("tag", tag, f"{folder} has no such checkpoint", nearest(tag, tags))


def _nothing_in(folder: Path) -> Exception:
    there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if not there:
        return CheckpointError.of("folder", str(folder), "it is empty", "the folder that was saved into")
    if any(name.endswith(TORCH_FILES) for name in there):
        why = f"it holds no checkpoint of restoke, but files of torch.save ({there[0]})"
        return CheckpointError.of("folder", str(folder), why, UNSAFE)
    why = f"it holds no checkpoint of restoke, but {', '.join(there[:3])}"
    return CheckpointError.of("folder", str(folder), why, "the folder that was saved into")
