"""What is in a folder of checkpoints, told from the manifests alone: no tensor is read."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from attrs import field, frozen

from restoke.checkpoint.find import candidates
from restoke.checkpoint.formats import ITEMSIZE
from restoke.checkpoint.generations import present
from restoke.checkpoint.manifest import Manifest, TensorEntry, file_name, parse, read_body
from restoke.checkpoint.natural import natural
from restoke.checkpoint.places import placed
from restoke.errors import CheckpointError

if TYPE_CHECKING:
    from restoke.parts import Saved

DEPTH = 64  # levels of nesting that a save allows
NAN_OR_SO = re.compile("[0-9a-f]{16}")  # floats that JSON lacks are kept as their bytes


@final
@frozen
class Overview:
    """One checkpoint. `fault` says what is wrong with it as far as names and sizes tell: no checksum of a tensor was taken."""

    tag: str
    path: Path
    fault: str = ""
    manifest: Manifest | None = field(default=None, repr=False)

    @property
    def generation(self) -> int:
        return self.manifest.generation if self.manifest else 0

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the session said of it: spec, steps, torch. Empty where another program wrote it."""
        told = plain(self.manifest.meta) if self.manifest else None
        return told if isinstance(told, dict) else {}

    @property
    def optimizer(self) -> Mapping[str, Any] | None:
        """Its class, and its groups with the names of their parameters and their options; None where there is none."""
        values = plain(self.manifest.values) if self.manifest else None
        told = values.get("optimizer") if isinstance(values, dict) else None
        right = isinstance(told, dict) and isinstance(told.get("groups"), list) and all(map(_is_group, told["groups"]))
        return {"class": str(told.get("class")), "groups": told["groups"]} if told and right else None


def _is_group(group: Any) -> bool:
    return isinstance(group, dict) and isinstance(group.get("params"), list)


def overviews(path: Path, tag: str | None) -> tuple[Path, list[Overview], Overview | None]:
    """The folder, its checkpoints (newest first, then those without a good manifest), and the one asked for or the newest.

    Raises:
        CheckpointError: there is none, or the one asked for has no good manifest.
    """
    folder, tag = placed(path, tag)
    candidates(folder, tag)
    found = [_overview(name, place) for name, place in present(folder).items()]
    found = [item for item in found if not item.fault or item.path.exists()]  # a save may have deleted it meanwhile
    found.sort(key=lambda item: (-item.generation, item.tag))
    chosen = next((item for item in found if item.tag == tag or (tag is None and item.manifest)), None)
    if tag is not None and chosen is not None and chosen.manifest is None:
        raise CheckpointError.of("tag", tag, chosen.fault, "another tag")
    return folder, found, chosen


def _overview(tag: str, path: Path) -> Overview:
    try:
        manifest = parse(read_body(path))
    except (ValueError, OSError) as error:
        return Overview(tag, path, str(error))
    return Overview(tag, path, _missing(path, manifest), manifest)


def _missing(path: Path, manifest: Manifest) -> str:
    """What names and sizes tell."""
    for rank, entry in enumerate(manifest.files):
        file = path / file_name(rank, manifest.world_size)
        if file.is_symlink() or not file.is_file():
            return f"{file.name} is missing"
        if (size := file.stat().st_size) != entry.bytes:
            return f"{file.name} has {size} of {entry.bytes} bytes"
    return ""


def size_of(entry: TensorEntry) -> int:
    """Its bytes, all chunks together."""
    return math.prod(entry.shape) * ITEMSIZE[entry.dtype]


def matching(manifest: Manifest, pattern: str) -> dict[str, TensorEntry]:
    """The tensors whose key the pattern fits, as a shell's: `model/*.weight`. In the order of their names."""
    keys = (key for key in manifest.tensors if fnmatchcase(key, pattern))
    return {key: manifest.tensors[key] for key in sorted(keys, key=natural)}


@final
@frozen
class Listed:
    """A tensor in a file of weights."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def listed(weights: Saved, pattern: str) -> list[Listed]:
    """The tensors whose name the pattern fits, in their order in the file."""
    found = []
    for key in weights.keys():  # noqa: SIM118
        name = key.removeprefix("model/")
        if fnmatchcase(name, pattern):
            shape, dtype = weights.shape(key), weights.dtype(key)
            found.append(Listed(name, shape, str(dtype).removeprefix("torch."), math.prod(shape) * dtype.itemsize))
    return found


def aliases_of(weights: Saved, pattern: str) -> dict[str, str]:
    """The other names of tied tensors, of those that the pattern fits."""
    told: Mapping[str, str] = weights.values["model"].get("aliases", {})
    return {name: owner for name, owner in told.items() if fnmatchcase(name, pattern)}


def kind_of(key: str) -> str:
    """What a tensor is for: `model`, `optimizer/exp_avg`, `values`."""
    kind, _, rest = key.partition("/")
    return f"{kind}/{rest.rpartition('/')[2]}" if kind == "optimizer" and "/" in rest else kind


def by_kind(tensors: Mapping[str, TensorEntry]) -> dict[str, list[TensorEntry]]:
    """The tensors of each kind, the model's first."""
    found: dict[str, list[TensorEntry]] = {}
    for key, entry in tensors.items():
        found.setdefault(kind_of(key), []).append(entry)
    return dict(sorted(found.items(), key=lambda item: (item[0] != "model", item[0])))


def plain(value: Any, depth: int = 0) -> Any:
    """A value of the manifest for people and for JSON: tuples are lists, and what JSON lacks is a text."""
    if depth > DEPTH:
        return "..."
    if isinstance(value, list):
        return [plain(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    name, content = next(iter(value.items()), ("", None))
    if not name.startswith("$"):
        return {key: plain(item, depth + 1) for key, item in value.items()}
    return _special(name[1:], content, depth)


def _special(name: str, content: Any, depth: int) -> Any:
    if name in ("tuple", "set", "frozenset", "size") and isinstance(content, list):
        return [plain(item, depth + 1) for item in content]
    if name == "float" and isinstance(content, str) and NAN_OR_SO.fullmatch(content):
        return str(struct.unpack(">d", bytes.fromhex(content))[0])
    return content if name == "int" else f"{name} {content}"
