"""Which files hold a model's weights: one file, the shards that an index names, or what a folder holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

from attrs import field, frozen

from restoke.errors import CheckpointError

INDEX = ".index.json"
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<suffix>\.\w+)")
LIMIT = 1 << 28  # bytes of an index
MANY = 100_000  # shards that a name may speak of
FOREIGN = {  # what is in it, whose it is, and how its owner makes one file of it
    "*.distcp": (
        "torch.distributed.checkpoint",
        "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE, which unpickles a part of it",
    ),
    "zero_to_fp32.py": ("DeepSpeed", "python zero_to_fp32.py FOLDER OUT, which unpickles it"),
}
ONE_FILE = "one file of weights, or an index of its shards"


@final
@frozen
class Located:
    """`files` by their names, and for shards which of them an index says that a tensor is in."""

    called: str
    files: dict[str, Path]
    weight_map: dict[str, str] | None = field(default=None, repr=False)


def holds_weights(path: Path) -> bool:
    """Whether it is a file, or a folder with files of weights or an index of them."""
    return path.is_file() or (path.is_dir() and any(child.name.endswith((*SUFFIXES, INDEX)) for child in path.iterdir()))


def located(path: Path) -> Located:
    """Raises CheckpointError: there is nothing, several things, or not all of one."""
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file():
        raise CheckpointError.of("weights", str(path), "there is no such file", ONE_FILE)
    if path.name.endswith(".json"):
        return _of_index(path)
    return Located(path.name, {path.name: path})


def _in_folder(folder: Path) -> Located:
    """Safetensors go before what is pickled; of either there must be one: a file, a set of shards, an index with its files."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for suffix in (".safetensors", None):
        wanted = [suffix] if suffix else list(SUFFIXES)
        indices = [path for path in paths if any(path.name.endswith(each + INDEX) for each in wanted)]
        files = [path for path in paths if path.suffix in wanted]
        listed = {name for index in indices[:1] for name in _of_index(index).files}
        others = [path for path in files if path.name not in listed]
        if len(indices) + len(others) == 1 or (not indices and _is_set(others)):
            return _of_index(indices[0]) if indices else _whole_set(others)
        if indices or files:
            raise _ambiguous(folder, [*indices, *others])
    for pattern, (whose, remedy) in FOREIGN.items():
        if any(folder.glob(pattern)):
            raise CheckpointError.of("weights", str(folder), f"it is a checkpoint of {whose}", remedy)
    why = f"it holds no file of weights ({', '.join(SUFFIXES)})"
    raise CheckpointError.of("weights", str(folder), why, ONE_FILE)


def _ambiguous(folder: Path, paths: list[Path]) -> Exception:
    names = ", ".join(path.name for path in paths[:4])
    return CheckpointError.of("weights", str(folder), f"it holds several ({names})", f"name one, as in {paths[0]}")


def _is_set(files: list[Path]) -> bool:
    """Whether all are shards of one set, by their names."""
    shards = [SHARD.fullmatch(path.name) for path in files]
    return len({(shard["stem"], shard["count"], shard["suffix"]) if shard else None for shard in shards}) == 1 and all(shards)


def _whole_set(files: list[Path]) -> Located:
    """The file, or all shards of a set that has no index."""
    shard = SHARD.fullmatch(files[0].name)
    count = int(shard["count"]) if shard else 1
    numbers = {int(found["number"]) for path in files if (found := SHARD.fullmatch(path.name))}
    if shard and (count > MANY or numbers != set(range(1, count + 1))):
        missing = sorted(set(range(1, min(count, MANY) + 1)) - numbers)
        why = f"of its {count} shards, number {', '.join(map(str, missing[:5]))} is missing"
        raise CheckpointError.of("weights", str(files[0].parent), why, "the whole set")
    return Located(files[0].name if count == 1 else str(files[0].parent), {path.name: path for path in files})


def _of_index(path: Path) -> Located:
    weight_map = _weight_map(path)
    files = {name: path.parent / name for name in dict.fromkeys(weight_map.values())}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        why = (
            f"of the {len(files)} files that it names, {', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} missing"
        )
        raise CheckpointError.of("weights", str(path), why, "the whole set, beside its index")
    return Located(path.name, files, weight_map)


def _weight_map(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > LIMIT:
            raise ValueError(f"it is larger than {LIMIT} bytes")
        data = json.loads(path.read_bytes(), object_pairs_hook=unique)
        found = data.get("weight_map") if isinstance(data, dict) else None
        if not isinstance(found, dict) or not found:
            raise ValueError("it has no weight_map")
        _check_names(found.values())
    except (ValueError, RecursionError, OSError) as error:
        why = f"it is no index of shards ({error})"
        raise CheckpointError.of("weights", str(path), why, "an index such as model.safetensors.index.json") from error
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`. Raises ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is in it twice")
    return found


def _check_names(names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or re.search(r"[/\\:]", name) or name in ("", ".", ".."):
            raise ValueError(f"it names {str(name)[:60]!r}, which is no plain file name")
