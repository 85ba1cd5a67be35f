"""The few collectives that restoke itself needs outside the hot path. Every rank calls them; a world of one returns at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from restoke.world import World


def device_of(world: World) -> torch.device:
    """Where small messages live: the CPU if the group can send from there, else the rank's device."""
    return torch.device("cpu") if "gloo" in str(dist.get_backend_config()) else world.device


def gather_json(value: Any, world: World) -> list[Any]:
    """Every rank's JSON value, in rank order, on every rank. Also a barrier. Object collectives would pickle; this does not."""
    if world.size == 1:
        return [json.loads(json.dumps(value))]
    device = device_of(world)
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world.size)]
    dist.all_gather(lengths, torch.tensor([data.numel()], device=device))
    sizes = [int(length) for length in lengths]
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    rows = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(rows, padded)
    return [json.loads(bytes(row[:size].cpu().numpy())) for row, size in zip(rows, sizes, strict=True)]


def broadcast_json(value: Any, world: World) -> Any:
    """Rank 0's JSON value on every rank; what the others pass does not matter."""
    if world.size == 1:
        return json.loads(json.dumps(value))
    return sent_json(value, world.rank == 0, lambda tensor: dist.broadcast(tensor, src=0), device_of(world))


def sent_json(value: Any, first: bool, send: Callable[[Tensor], Any], device: torch.device) -> Any:
    """The JSON value of the rank that is the first, on every rank, by a `send` that gives all its tensor's values."""
    data = json.dumps(value).encode() if first else b""
    length = torch.tensor([len(data)], device=device)
    send(length)
    box = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if first:
        box.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    send(box)
    return json.loads(bytes(box.cpu().numpy()))


def mean(tensor: Tensor, world: World) -> Tensor:
    """The mean over ranks, computed in float32 at least, as a new tensor on the input's device."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
    if world.size > 1:
        dist.all_reduce(wide)
        wide /= world.size
    return wide


def broadcast_tensor(tensor: Tensor, src: int = 0) -> None:
    """Rank `src`'s numbers on every rank, in place; as bytes, since backends do not know every dtype."""
    plain = tensor.detach().contiguous()
    dist.broadcast(plain.reshape(-1).view(torch.uint8), src=src)
    if plain.data_ptr() != tensor.data_ptr():
        tensor.copy_(plain)


def barrier(world: World) -> None:
    """Every rank waits here for the others."""
    if world.size > 1:
        dist.barrier()
