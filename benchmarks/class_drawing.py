"""TorchShard's three figures drawn anew: published points, the model through them, and restoke's own line."""

from __future__ import annotations

import math
from pathlib import Path

from class_model import CARD, FORMULAS, PUBLISHED, SIZES, Case

FIGURES = {
    "plain": ("DDP", "dim 0", "dim 1", "restoke", "restoke, fused"),
    "amp": ("DDP", "dim 0, AMP", "dim 1, AMP", "restoke, AMP"),
    "zero": ("DDP", "dim 0, ZeRO", "dim 1, ZeRO", "restoke, ZeRO"),
}
COLOURS = ("#777777", "#c44e52", "#4c72b0", "#2a9d5c", "#8a5fbf")
LEFT, RIGHT, TOP, BOTTOM = 70, 570, 30, 340
FEWEST, MOST, HIGHEST = 1_000, 2_000_000, 14_000


def x_of(classes: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(classes / FEWEST) / math.log(MOST / FEWEST)


def y_of(mib: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * mib / HIGHEST


def figure(name: str) -> str:
    """An SVG: classes (logarithmic) across, MiB of a card of eight up; dots are published, lines are formulas."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="760" height="390" font-family="sans-serif" font-size="12">']
    parts.append('<rect width="760" height="390" fill="white"/>')
    parts += [_tick_x(classes) for classes in (1_000, 10_000, 100_000, 1_000_000, 2_000_000)]
    parts += [_tick_y(mib) for mib in range(0, HIGHEST + 1, 2_000)]
    parts.append(f'<path d="M{LEFT} {y_of(CARD):.1f}H{RIGHT}" stroke="black" stroke-dasharray="3 3"/>')
    parts.append(f'<text x="{LEFT + 4}" y="{y_of(CARD) - 4:.1f}">a card of 12 GB</text>')
    for number, (series, colour) in enumerate(zip(FIGURES[name], COLOURS, strict=False)):
        parts += _series(series, colour, number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _tick_x(classes: int) -> str:
    x = x_of(classes)
    line = f'<path d="M{x:.1f} {TOP}V{BOTTOM}" stroke="#e4e4e4"/>'
    return line + f'<text x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{classes:,}</text>'


def _tick_y(mib: int) -> str:
    y = y_of(mib)
    line = f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#e4e4e4"/>'
    return line + f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mib:,}</text>'


def _series(series: str, colour: str, number: int) -> list[str]:
    steps = [FEWEST * (MOST / FEWEST) ** (i / 80) for i in range(81)]
    along = [(x_of(c), y_of(held)) for c in steps if (held := FORMULAS[series](Case(int(c)))) <= HIGHEST]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in along)
    drawn = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for classes, value in zip(SIZES, PUBLISHED.get(series, ()), strict=False):
        drawn.append(f'<circle cx="{x_of(classes):.1f}" cy="{y_of(value):.1f}" r="4" fill="{colour}"/>')
    y = TOP + 20 * number + 10
    drawn.append(f'<path d="M{RIGHT + 20} {y}h20" stroke="{colour}" stroke-width="3"/>')
    said = f"{series}, published" if series in PUBLISHED else series
    return [*drawn, f'<text x="{RIGHT + 46}" y="{y + 4}">{said}</text>']


def draw(folder: Path) -> None:
    """One file a figure."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        (folder / f"classes-{name}.svg").write_text(figure(name), encoding="utf-8")
