"""Files of weights, opened: the shape and dtype of each tensor, and a way to cut a box out of it without reading the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from attrs import evolve, field, frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor

from restoke.checkpoint.container import DTYPES
from restoke.checkpoint.formats import CODES
from restoke.checkpoint.manifest import LARGEST
from restoke.checkpoint.tiling import Box
from restoke.checkpoint.weights_index import Located, unique
from restoke.checkpoint.weights_torch import is_torch_file, state_dict
from restoke.errors import CheckpointError

PACKED = "F4"  # two to a byte: the header counts halves, and the library cannot slice them
OF_CODE = {code: DTYPES[name] for name, code in reversed(CODES.items())} | {PACKED: torch.float4_e2m1fn_x2}
OTHER_FILE = "a safetensors file, or a state dict that torch.save wrote"


@final
@frozen(eq=False)
class Source:
    """One tensor of a file. `cut` returns a box of it, which may be a view of the file's pages: copy, never write."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    cut: Callable[[Box], Tensor]


@final
@frozen(eq=False)
class Found:
    """What files hold: tensors by name, the other names of tied ones, and what is no tensor."""

    called: str
    tensors: Mapping[str, Source] = field(repr=False)
    aliases: Mapping[str, str] = field(factory=dict)
    extra: Mapping[str, Any] = field(factory=dict)
    notes: list[str] = field(factory=list)


def open_files(located: Located) -> Found:
    """All tensors of the files; of shards with an index, those that it names, each from the file that it says.

    Raises:
        CheckpointError: a file is malformed, or lacks what the index says.
    """
    if located.weight_map is None:
        return _joined(located.called, [_opened(path) for path in located.files.values()])
    shards = {name: _opened(path) for name, path in located.files.items()}
    return _mapped(located.called, shards, located.weight_map)


def _joined(called: str, parts: list[Found]) -> Found:
    whole = evolve(parts[0], called=called)
    for part in parts[1:]:
        twice = sorted(whole.tensors.keys() & part.tensors.keys())
        if twice:
            raise CheckpointError.of(
                "weights", called, f"{twice[0]} is in two of its files", "the files of one model, or an index"
            )
        whole = _plus(whole, part, {**whole.tensors, **part.tensors})
    return whole


def _plus(whole: Found, part: Found, tensors: Mapping[str, Source]) -> Found:
    aliases, extra = {**whole.aliases, **part.aliases}, {**whole.extra, **part.extra}
    return evolve(whole, tensors=tensors, aliases=aliases, extra=extra, notes=[*whole.notes, *part.notes])


def _mapped(called: str, shards: Mapping[str, Found], weight_map: Mapping[str, str]) -> Found:
    whole = Found(called, {})
    for part in shards.values():
        whole = _plus(whole, part, {})
    missing = [key for key, name in weight_map.items() if key not in shards[name].tensors and key not in shards[name].aliases]
    if missing:
        why = f"it says that {missing[0]} is in {weight_map[missing[0]]}, which has no such tensor ({len(missing)} such in all)"
        raise CheckpointError.of("weights", called, why, "the index that belongs to these files")
    held = {key: shards[name].tensors[key] for key, name in weight_map.items() if key in shards[name].tensors}
    unlisted = sum(len(part.tensors) for part in shards.values()) - len(held)
    notes = [f"{called} does not list {unlisted} of the tensors in its files: they are left out"] if unlisted else []
    return evolve(whole, tensors=held, notes=[*whole.notes, *notes])


def _opened(path: Path) -> Found:
    try:
        return _from_torch(path) if is_torch_file(path) else _from_safetensors(path)
    except OSError as error:
        why = f"it cannot be read ({error.strerror or error})"
        raise CheckpointError.of("weights", str(path), why, OTHER_FILE) from error


def _from_torch(path: Path) -> Found:
    content = state_dict(path)
    tensors = {name: _of_tensor(name, tensor) for name, tensor in content.tensors.items()}
    return Found(path.name, tensors, content.aliases, content.extra, content.notes)


def _of_tensor(name: str, tensor: Tensor) -> Source:
    shape = tuple(tensor.shape)
    return Source(shape, tensor.dtype, lambda box: tensor[box.within(Box.whole(shape))])


def _from_safetensors(path: Path) -> Found:
    try:
        handle: Any = safe_open(path, "pt")
        tensors = {name: _of_slice(path, handle, name) for name in handle.keys()}  # noqa: SIM118
        said = handle.metadata() or {}
        _check_header(path)
    except (SafetensorError, ValueError) as error:
        why = f"it is no whole safetensors file ({error})"
        raise CheckpointError.of("weights", str(path), why, OTHER_FILE) from error
    aliases = {name: owner for name, owner in said.items() if owner in tensors and name not in tensors}
    return Found(path.name, tensors, aliases)


def _check_header(path: Path) -> None:
    """Raises ValueError where a name is in it twice, which the library lets pass. All else of the header it has checked."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        json.loads(file.read(length), object_pairs_hook=unique)


def _of_slice(path: Path, handle: Any, name: str) -> Source:
    part = handle.get_slice(name)
    shape, code = tuple(part.get_shape()), part.get_dtype()
    if code not in OF_CODE or (code == PACKED and (not shape or shape[-1] % 2)):
        raise CheckpointError.of(
            "weights", f"{path}: {name}", f"its dtype {code} is not known here", "convert it to another dtype"
        )
    if math.prod(max(size, 1) for size in shape) >= LARGEST:
        raise CheckpointError.of("weights", f"{path}: {name}", f"its shape {shape} is larger than anything", OTHER_FILE)
    if code != PACKED:
        return Source(shape, OF_CODE[code], lambda box: part[box.within(Box.whole(shape)) or ...])
    halved = (*shape[:-1], shape[-1] // 2)
    return Source(halved, OF_CODE[code], lambda box: handle.get_tensor(name)[box.within(Box.whole(halved))])
