"""Margins of softmax losses over cosines: what is done to the cosine of a sample and its own class, and to no other.

Each is a function of the target cosines alone, element by element. Values and slopes are finite at cosines of 1 and -1, and
slightly beyond, where rounding may lead; nothing is clamped that a gradient should pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from attrs import Attribute, field, frozen
from torch import Tensor

from restoke.errors import SpecError

Margin = Callable[[Tensor], Tensor]


def _between(low: float, high: float) -> Callable[[object, Attribute[float], float], None]:
    def check(margin: object, option: Attribute[float], value: float) -> None:
        if not low <= value < high:
            why = f"{type(margin).__name__} lowers the cosine of a sample and its own class"
            raise SpecError.of(option.name, value, why, f"{low:g} or more" + (f", below {high:.4g}" if high < math.inf else ""))

    return check


def sine(cosine: Tensor) -> Tensor:
    """sqrt(1 - cosine^2), of angles between 0 and pi; 0, and flat, where rounding leaves nothing under the root."""
    square = 1 - cosine * cosine
    inside = square > 0
    return torch.where(inside, torch.where(inside, square, 1.0).sqrt(), 0.0)


@final
@frozen
class ArcFace:
    """cos(theta + m): an additive angular margin (Deng et al. 2019, equation 3).

    Beyond theta + m = pi, where that would fall again, the margin is m sin(m), taken off the cosine.

    Args:
        m: in radians.
        easy_margin: no margin at all for angles over pi/2, and so no such case for margins up to pi/2.
    """

    m: float = field(default=0.5, validator=_between(0, math.pi))
    easy_margin: bool = False

    def __call__(self, cosine: Tensor) -> Tensor:
        wide = cosine * math.cos(self.m) - sine(cosine) * math.sin(self.m)
        if self.easy_margin:
            return torch.where(cosine > 0, wide, cosine)
        return torch.where(cosine > math.cos(math.pi - self.m), wide, cosine - self.m * math.sin(self.m))


@final
@frozen
class CosFace:
    """cos(theta) - m: an additive cosine margin (Wang et al. 2018, equation 4)."""

    m: float = field(default=0.35, validator=_between(0, math.inf))

    def __call__(self, cosine: Tensor) -> Tensor:
        return cosine - self.m


@final
@frozen
class CombinedMargin:
    """cos(m1 theta + m2) - m3 (Deng et al. 2019, equation 4).

    With m1 = 1 it treats angles beyond pi as ArcFace does. Any other m1 continues the cosine from turn to turn as SphereFace
    does, (-1)^k cos(phi) - 2k for phi from k pi to (k + 1) pi (Liu et al. 2017, equation 7), so that it falls everywhere.

    Args:
        m1: a factor of the angle, 1 at least. m2: in radians. m3: of the cosine.
        easy_margin: no margin at all for angles over pi/2.
    """

    m1: float = field(default=1.0, validator=_between(1, math.inf))
    m2: float = field(default=0.0, validator=_between(0, math.pi))
    m3: float = field(default=0.0, validator=_between(0, math.inf))
    easy_margin: bool = False

    def __call__(self, cosine: Tensor) -> Tensor:
        if self.m1 == 1:
            return ArcFace(self.m2)(cosine) - self.m3 if not self.easy_margin else self._easy(cosine)
        return self._easy(cosine) if self.easy_margin else self._turned(cosine) - self.m3

    def _easy(self, cosine: Tensor) -> Tensor:
        return torch.where(cosine > 0, self._turned(cosine) - self.m3, cosine)

    def _turned(self, cosine: Tensor) -> Tensor:
        phi = self.m1 * _angle_of(cosine) + self.m2
        turns = torch.floor(phi.detach() / math.pi)
        return torch.where(turns % 2 == 0, 1.0, -1.0) * torch.cos(phi) - 2 * turns


def _angle_of(cosine: Tensor) -> Tensor:
    """The arc cosine: precise near 1 and -1, flat there and beyond."""
    return torch.atan2(sine(cosine), cosine)
