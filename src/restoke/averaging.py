"""Gradients averaged over ranks at once, where torch's own engines have not done it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def average(parameters: list[nn.Parameter], size: int, group: Any = None) -> None:
    """Mean gradients over `size` ranks, in one collective per dtype; one that no rank has stays None, as DDP leaves it."""
    trained = [p for p in parameters if p.requires_grad]
    for dtype in dict.fromkeys(p.dtype for p in trained):
        own = [p for p in trained if p.dtype == dtype]
        has = torch.tensor([p.grad is not None for p in own], dtype=dtype, device=own[0].device)
        flat = torch.cat([has, *((torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in own)])
        dist.all_reduce(flat, group=group)
        held = (flat[: len(own)] != 0).tolist()
        pieces = torch.split(flat[len(own) :] / size, [p.numel() for p in own])
        for p, some, piece in zip(own, held, pieces, strict=True):
            p.grad = piece.view_as(p).clone() if some else None
