"""Margin heads as plain torch on full matrices: what the parallel ones must equal, and their gradients with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from restoke.nn.margins import ArcFace, CombinedMargin, CosFace

F64 = torch.float64


def arcface(m: float) -> Callable[[Tensor], Tensor]:
    """cos(theta + m), through the angle itself; beyond theta + m = pi, cos(theta) - m sin(m)."""
    return lambda theta: torch.where(theta + m <= math.pi, torch.cos(theta + m), torch.cos(theta) - m * math.sin(m))


def easy(m: float) -> Callable[[Tensor], Tensor]:
    return lambda theta: torch.where(theta < math.pi / 2, torch.cos(theta + m), torch.cos(theta))


def turned(m1: float, m2: float, m3: float) -> Callable[[Tensor], Tensor]:
    def psi(theta: Tensor) -> Tensor:
        phi = m1 * theta + m2
        k = torch.floor(phi / math.pi)
        return (1 - 2 * (k % 2)) * torch.cos(phi) - 2 * k - m3

    return psi


PAIRS: list[tuple[Any, Callable[[Tensor], Tensor]]] = [
    (ArcFace(), arcface(0.5)),
    (ArcFace(1.1), arcface(1.1)),
    (ArcFace(0.5, easy_margin=True), easy(0.5)),
    (CosFace(0.35), lambda theta: torch.cos(theta) - 0.35),
    (CombinedMargin(1.0, 0.3, 0.2), lambda theta: arcface(0.3)(theta) - 0.2),
    (CombinedMargin(1.35, 0.3, 0.2), turned(1.35, 0.3, 0.2)),
    (CombinedMargin(4.0, 0.0, 0.0), turned(4.0, 0.0, 0.0)),
    (
        CombinedMargin(1.0, 0.3, 0.2, easy_margin=True),
        lambda theta: torch.where(theta < math.pi / 2, torch.cos(theta + 0.3) - 0.2, torch.cos(theta)),
    ),
]


def logits(x: Tensor, weight: Tensor, target: Tensor | None, of_angle: Callable[[Tensor], Tensor], scale: float) -> Tensor:
    """The whole matrix, shape (rows, classes)."""
    cosines = F.normalize(x) @ F.normalize(weight).t()
    if target is None:
        return scale * cosines
    hit = F.one_hot(target.clamp_min(0), weight.shape[0]).bool() & (target >= 0).unsqueeze(1)
    return scale * torch.where(hit, of_angle(torch.acos(cosines.clamp(-1, 1))), cosines)
