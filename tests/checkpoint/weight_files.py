"""Weights of every dtype, a model with tied ones, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from restoke import checkpoint
from restoke.checkpoint import Weights
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk
from restoke.state import TorchState
from tests.checkpoint.on_ranks import joined
from tests.checkpoint.states import ONE

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool]
OTHERS = [torch.complex64, torch.float4_e2m1fn_x2]
State = dict[str, Tensor]
EVERY = [*FLOATS, *EIGHT_BITS, *WHOLE, *OTHERS]


class Tied(nn.Module):
    """Enough layers that their names sort otherwise as texts than as numbers, and one weight under two names."""

    def __init__(self, layers: int = 11, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.embed.weight


def of_dtype(dtype: torch.dtype, *shape: int) -> Tensor:
    """Bytes without a pattern, as that dtype."""
    generator = torch.Generator().manual_seed(7)
    size = shape[-1] * dtype.itemsize if shape else dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    data = torch.randint(0, high, (*shape[:-1], size), dtype=torch.uint8, generator=generator)
    return data.view(dtype) if shape else data.view(dtype).reshape(())


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Equal in names, dtypes, shapes and every bit."""
    return one.keys() == other.keys() and all(
        (a.dtype, a.shape, bits(a)) == ((b := other[name]).dtype, b.shape, bits(b)) for name, a in one.items()
    )


def saved(folder: Path, model: nn.Module, tag: str = "a", **more: Tensor) -> Path:
    """A checkpoint of the model after a step of AdamW, with further tensors by key."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    captured = TorchState(model, optimizer).capture()
    captured.chunks.update({key.replace("__", "/"): Chunk.whole(tensor) for key, tensor in more.items()})
    return checkpoint.write(folder, tag, captured, ONE, meta={"steps": 1})


def of_tensors(folder: Path, tensors: Mapping[str, Tensor], aliases: Mapping[str, str] | None = None) -> Path:
    """A checkpoint of these tensors alone."""
    chunks = {f"model/{name}": Chunk.whole(tensor) for name, tensor in tensors.items()}
    values = {"model": {"aliases": dict(aliases or {}), "extra": {}}}
    return checkpoint.write(folder, "a", Captured(chunks, values), ONE, meta={})


def sharded(folder: Path, shards: Mapping[str, Mapping[str, Tensor]], index: str = "model.safetensors.index.json") -> Path:
    """Files of safetensors with an index, as transformers writes them."""
    folder.mkdir(exist_ok=True)
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name)
    weight_map = {key: name for name, tensors in shards.items() for key in tensors}
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return folder


def rows_on_rank(path: Path) -> list[list[float]]:
    """This rank's half of the rows of `w`."""
    world = joined()
    weights = checkpoint.open_weights(path, world=world)
    rows, columns = weights.shape("model/w")
    half = rows // world.size
    return weights.read("model/w", (world.rank * half, 0), (half, columns)).tolist()  # type: ignore[no-any-return]


def refused_on_rank(folder: Path) -> str:
    """What this rank hears where only rank 0's file is there."""
    world = joined()
    try:
        checkpoint.open_weights(folder / f"{world.rank}.safetensors", world=world)
    except CheckpointError as error:
        return str(error)
    return ""


def read_all(weights: Weights) -> State:
    return {key.removeprefix("model/"): weights.read(key) for key in weights.keys()}  # noqa: SIM118


def every_dtype() -> State:
    return {str(dtype).removeprefix("torch."): of_dtype(dtype, 5, 4) for dtype in EVERY} | {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
    }


def as_torch(folder: Path, tensors: State) -> Path:
    torch.save(tensors, folder / "model.pt")
    return folder / "model.pt"


def as_old_torch(folder: Path, tensors: State) -> Path:
    torch.save(tensors, folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder / "model.pt"


def as_safetensors(folder: Path, tensors: State) -> Path:
    save_file(tensors, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def as_shards(folder: Path, tensors: State) -> Path:
    names = sorted(tensors)
    first, second = ({name: tensors[name] for name in half} for half in (names[::2], names[1::2]))
    return sharded(folder / "s", {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second})


def as_shards_without_index(folder: Path, tensors: State) -> Path:
    (as_shards(folder, tensors) / "model.safetensors.index.json").unlink()
    return folder / "s"


def as_checkpoint(folder: Path, tensors: State) -> Path:
    of_tensors(folder / "c", tensors)
    return folder / "c"


def as_one_checkpoint(folder: Path, tensors: State) -> Path:
    return of_tensors(folder / "c", tensors)


def own_memory() -> int:
    """Bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
