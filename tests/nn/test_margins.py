"""Margins equal the formulas of their papers in values and slopes, and are finite where an arc cosine's slope is not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from restoke.errors import SpecError
from restoke.nn.margins import ArcFace, CombinedMargin, CosFace
from tests.nn.margin_reference import F64, PAIRS


@pytest.mark.parametrize(("margin", "of_angle"), PAIRS, ids=lambda each: str(each) if "(" in str(each)[:20] else "")
def test_a_margin_is_its_papers_formula(margin: Any, of_angle: Any) -> None:
    theta = torch.linspace(0.001, math.pi - 0.001, 998, dtype=F64).requires_grad_()
    cosine = torch.cos(theta.detach()).requires_grad_()
    wanted, found = of_angle(theta), margin(cosine)
    assert (found - wanted).abs().max() < 1e-12
    (slope,) = torch.autograd.grad(found.sum(), cosine)
    (by_angle,) = torch.autograd.grad(wanted.sum(), theta)
    assert (slope * -torch.sin(theta) - by_angle).abs().max() < 1e-10


@pytest.mark.parametrize("margin", [margin for margin, _ in PAIRS], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_slopes_are_finite_at_one_and_beyond(margin: Any, dtype: torch.dtype) -> None:
    ulp = torch.finfo(dtype).eps
    cosine = torch.tensor([1, -1, 1 + 2 * ulp, -1 - 2 * ulp, 1 - ulp, -1 + ulp, 0], dtype=dtype, requires_grad=True)
    found = margin(cosine)
    (slope,) = torch.autograd.grad(found.sum(), cosine)
    assert found.isfinite().all()
    assert slope.isfinite().all()
    assert slope.abs().max() < 10 / math.sqrt(ulp)


@pytest.mark.parametrize(
    "margin", [ArcFace(), ArcFace(0.8), CombinedMargin(2.0, 0.3, 0.2), CombinedMargin(1.0, 0.5, 0.1)], ids=str
)
def test_a_hard_margin_takes_off_at_every_angle(margin: Any) -> None:
    cosine = torch.linspace(-1, 1, 2001, dtype=F64)
    assert (margin(cosine) < cosine).all()


def test_zero_margins_are_the_cosine() -> None:
    cosine = torch.linspace(-1, 1, 201, dtype=F64)
    for margin in (ArcFace(0.0), CosFace(0.0), CombinedMargin()):
        assert torch.equal(margin(cosine), cosine)


@pytest.mark.parametrize(
    "make", [lambda: ArcFace(-0.1), lambda: ArcFace(4.0), lambda: CosFace(-1.0), lambda: CombinedMargin(0.5)]
)
def test_margins_outside_their_range_are_refused(make: Any) -> None:
    with pytest.raises(SpecError, match="lowers the cosine"):
        make()
