"""A model's whole tensors, put together on every rank from what each rank holds of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from restoke.checkpoint.plan import assign, row, stored
from restoke.checkpoint.tiling import Box
from restoke.comm import broadcast_tensor, device_of, gather_json
from restoke.parts import Captured, Chunk
from restoke.world import World

PREFIX = "model/"


def gather_whole(captured: Captured, world: World) -> dict[str, Tensor]:
    """The tensors of a captured model by name, tied ones under each of their names, as new CPU tensors.

    Every rank calls this, and each gets the whole: a model's worth of host memory on each.
    """
    chunks = {key: chunk for key, chunk in captured.chunks.items() if key.startswith(PREFIX)}
    if world.size == 1:
        found = {key: chunk.tensor.detach().to("cpu", copy=True) for key, chunk in chunks.items()}
    else:
        found = _together(chunks, world)
    whole = {key.removeprefix(PREFIX): tensor for key, tensor in found.items()}
    aliases: dict[str, Any] = captured.values["model"]["aliases"]
    return whole | {alias: whole[owner] for alias, owner in aliases.items()}


def _together(chunks: dict[str, Chunk], world: World) -> dict[str, Tensor]:
    rows = [row(key, chunk) for key, chunk in chunks.items()]
    held = {(key, Box(tuple(offsets), tuple(shape))): stored(chunks[key]) for key, offsets, shape, *_ in rows}
    entries = assign(gather_json(rows, world))
    device = device_of(world)
    found = {}
    for key, entry in entries.items():
        found[key] = whole = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        for piece in entry.pieces:
            box = torch.empty(piece.box.shape, dtype=whole.dtype, device=device)
            if piece.rank == world.rank:
                box.copy_(held[key, piece.box])
            broadcast_tensor(box, src=piece.rank)
            whole[piece.box.within(Box.whole(entry.shape))] = box.cpu()
    return found
