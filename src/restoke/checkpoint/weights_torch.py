"""A state dict in a file of `torch.save`, read without running code from it and without copying its tensors to memory."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from attrs import field, frozen
from torch import Tensor

from restoke.checkpoint.arrays import check_tensor
from restoke.errors import CheckpointError

ZIP, PICKLE = b"PK\x03\x04", b"\x80"
NESTED = ("state_dict", "model_state_dict", "model", "module")  # where training scripts put it beside other things
DEPTH = 4
PLAIN = "a state dict alone: torch.save(model.state_dict(), path)"
UNSAFE = (
    "if you trust where it came from, write the weights out once: "
    "torch.save(torch.load(path, weights_only=False)['model_state_dict'], new), which runs code from the file"
)


@final
@frozen(eq=False)
class StateDict:
    """`aliases` are the other names of tensors that share all of their memory with one of `tensors`."""

    tensors: Mapping[str, Tensor] = field(repr=False)
    aliases: Mapping[str, str]
    extra: Mapping[str, Any]
    notes: list[str]


def is_torch_file(path: Path) -> bool:
    """By its first bytes, whatever it is called. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(10)
    # a safetensors file may begin with the byte of a pickle too, the length of its header; then a brace follows it
    return head.startswith(ZIP) or (head.startswith(PICKLE) and head[8:9] != b"{")


def state_dict(path: Path) -> StateDict:
    """Raises CheckpointError: it is malformed, has no state dict, several, or needs code from the file to be read."""
    notes: list[str] = []
    found = _inner(path, _load(path, notes), notes)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    owners: dict[tuple[Any, ...], str] = {}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            continue
        check_tensor(plain := _bare(value), f"{path.name}: {name}")
        owner = owners.setdefault(_place(plain), name) if plain.numel() else name
        if owner == name:
            tensors[name] = plain
        else:
            aliases[name] = owner
    extra = {name: value for name, value in found.items() if not isinstance(value, Tensor)}
    return StateDict(tensors, aliases, extra, notes)


def _bare(value: Tensor) -> Tensor:
    return value.data if type(value) is torch.nn.Parameter else value.detach()


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _load(path: Path, notes: list[str]) -> Any:
    mapped = _starts_with(path, ZIP)
    if not mapped:
        notes.append(f"{path.name} is in torch's format from before 1.6: it is read into memory as a whole")
    try:
        if mapped:
            _check_zip(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        why = f"reading it would run code from the file, or it is damaged ({_first_line(error)})"
        raise CheckpointError.of("weights", str(path), why, UNSAFE) from error
    except OSError:
        raise
    except Exception as error:  # a malformed file may raise anything
        why = f"it is no whole file of torch.save ({type(error).__name__}: {_first_line(error)})"
        raise CheckpointError.of("weights", str(path), why, PLAIN) from error


def _check_zip(path: Path) -> None:
    """torch.save compresses nothing: what unpacks to more than there is on the disk is an attack. Raises ValueError."""
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("a part of it is compressed")


def _starts_with(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(head)) == head


def _first_line(error: Exception) -> str:
    """Torch explains at length how to load it unsafely; what it says first is what it found."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if "WeightsUnpickler" in line or "Unsupported" in line] or lines or [""]
    return said[0][:200]


def _inner(path: Path, content: Any, notes: list[str]) -> Mapping[str, Any]:
    """The state dict in it: names, and tensors among the values."""
    for _ in range(DEPTH):
        if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
            break
        if any(isinstance(value, Tensor) for value in content.values()):
            return content
        inner = [name for name in NESTED if isinstance(content.get(name), Mapping)]
        if len(inner) > 1:
            why = f"it holds several: {', '.join(inner)}"
            raise CheckpointError.of("weights", str(path), why, f"{PLAIN}")
        if not inner:
            break
        notes.append(f"the weights are taken from {inner[0]!r} in {path.name}; what is beside them is left out")
        content = content[inner[0]]
    held = f"a {type(content).__name__}"
    if isinstance(content, Mapping) and content:
        held = f"{', '.join(str(name) for name in list(content)[:5])}"
    raise CheckpointError.of("weights", str(path), f"there is no state dict in it, but {held}", PLAIN)
