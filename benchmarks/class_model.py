"""The memory of ResNet-50 with a head of many classes on one card, by formula, beside what TorchShard's figures show.

All in MiB. A card holds the network, its activations, and for the head some copies of its weights and of the logits. The
constant 1145 (context, libraries, temporaries) was fitted once, to plain data parallelism with 1000 classes; nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.table import Table

MIB = 2**20
WIDTH, BATCH = 2048, 256
NETWORK = 23_508_032 * 4 / MIB  # parameters without the head
IMAGE = 82.02  # activations that autograd keeps of one image of 224 x 224, in float32
CONSTANT = 1145.0
CARD = 12196.0
GOAL = (2_000_000, 8)
FIT = 0.11  # the furthest that a published point lies from its formula


@frozen
class Case:
    """So many classes on so many cards."""

    classes: int
    cards: int = 8

    @property
    def weights(self) -> float:
        """Of the whole head."""
        return self.classes * WIDTH * 4 / MIB

    @property
    def shard(self) -> float:
        return self.weights / self.cards

    @property
    def logits(self) -> float:
        """Of the whole batch and all classes."""
        return BATCH * self.classes * 4 / MIB

    @property
    def part(self) -> float:
        """Of the logits, on one card."""
        return self.logits / self.cards

    def network(self, amp: bool = False) -> float:
        """All but the head: weights, gradients, momentum and the buckets of the gradients; activations of a card's images.

        Under autocast activations take half, and weights have a copy of half their size.
        """
        return CONSTANT + IMAGE * (0.5 if amp else 1) * BATCH / self.cards + (4.5 if amp else 4) * NETWORK


def spared(case: Case) -> float:
    """What sharding the momentum takes off, with the head's momentum that was lost by it."""
    return case.shard + 7 / 8 * NETWORK


Formula = Callable[[Case], float]
FORMULAS: dict[str, Formula] = {
    "DDP": lambda c: c.network() + 5 * c.weights + 4 * c.part,
    "dim 0": lambda c: c.network() + 3 * c.shard + 4 * c.logits,
    "dim 1": lambda c: c.network() + 3 * c.shard + 3 * c.logits + 3 * c.part,
    "dim 0, AMP": lambda c: c.network(amp=True) + 3.5 * c.shard + 4 * c.logits,
    "dim 1, AMP": lambda c: c.network(amp=True) + 3.5 * c.shard + 1.5 * c.logits + 3 * c.part,
    "dim 0, ZeRO": lambda c: FORMULAS["dim 0"](c) - spared(c),
    "dim 1, ZeRO": lambda c: FORMULAS["dim 1"](c) - spared(c),
    "restoke": lambda c: c.network() + 3 * c.shard + 2 * c.part,
    "restoke, fused": lambda c: c.network() + 3 * c.shard + 32,
    "restoke, AMP": lambda c: c.network(amp=True) + 3.5 * c.shard + 2 * c.part,
    "restoke, ZeRO": lambda c: FORMULAS["restoke"](c) - 7 / 8 * NETWORK,
}
SIZES = (1_000, 5_000, 50_000, 100_000, 500_000, 1_000_000)
PUBLISHED: dict[str, tuple[int, ...]] = {  # read off the figures; out of memory where none is left
    "DDP": (4167, 4179, 5913, 8129),
    "dim 0": (4141, 4035, 4277, 4669, 7365, 10851),
    "dim 1": (4141, 4043, 4225, 4569, 7917, 11167),
    "dim 0, AMP": (2895, 2829, 3175, 3559, 6567, 10581),
    "dim 1, AMP": (2893, 2825, 2957, 3473, 5919, 9075),
    "dim 0, ZeRO": (4231, 3971, 4159, 4507, 7071, 9811),
    "dim 1, ZeRO": (4189, 3977, 4167, 4527, 7071, 10003),
}
SIXTEEN = {"dim 1": (Case(2_000_000, 16), 11615)}


@frozen
class Fit:
    """A published point, and what its formula says."""

    series: str
    case: Case
    published: int
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


def fits() -> Iterator[Fit]:
    """All 41 of them."""
    for series, values in PUBLISHED.items():
        for classes, value in zip(SIZES, values, strict=False):
            case = Case(classes)
            yield Fit(series, case, value, FORMULAS[series](case))
    for series, (case, value) in SIXTEEN.items():
        yield Fit(series, case, value, FORMULAS[series](case))


def report(console: Console, buffers: float) -> list[str]:
    """Prints points, errors and the goal; what does not hold.

    Args:
        buffers: of the logits' size that restoke's loss was measured to need, which the formula counts as 2.
    """
    grid = Table(title="TorchShard's published points and the model, MiB of a card")
    for name in ("series", *(f"{size:,}" for size in SIZES), "worst error"):
        grid.add_column(name, justify="left" if name == "series" else "right")
    found = list(fits())
    for series in PUBLISHED:
        own = [fit for fit in found if fit.series == series and fit.case.cards == 8]
        cells = [f"{fit.published} / {fit.predicted:.0f} ({fit.error:+.1%})" for fit in own]
        grid.add_row(series, *cells, *[""] * (len(SIZES) - len(cells)), f"{max(abs(fit.error) for fit in own):.1%}")
    console.print(grid)
    worst, mean = max(abs(fit.error) for fit in found), sum(abs(fit.error) for fit in found) / len(found)
    console.print(f"{len(found)} points: mean error {mean:.1%}, worst {worst:.1%}")
    goal = Case(*GOAL)
    for series in ("dim 0", "dim 1", "restoke", "restoke, fused"):
        held = FORMULAS[series](goal)
        fit_in = "fits" if held < CARD else "does not fit"
        console.print(f"{goal.classes:,} classes on {goal.cards} cards of {CARD:.0f}: {series} {held:.0f}, {fit_in}")
    problems = [f"a published point is {worst:.1%} from its formula"] if worst > FIT else []
    problems += [f"the loss needs {buffers:.2f} buffers of the logits, not 2"] if buffers > 2.1 else []
    over = FORMULAS["restoke"](goal) > CARD / (1 + FIT)  # also if the model is off by as much as it ever is
    return problems + ([f"{goal.classes} classes do not fit on {goal.cards} cards"] if over else [])


def plain() -> dict[str, Any]:
    """For the file."""
    points = [[fit.series, fit.case.classes, fit.case.cards, fit.published, fit.predicted] for fit in fits()]
    return {
        "points": points,
        "goal": {series: FORMULAS[series](Case(*GOAL)) for series in ("dim 1", "restoke", "restoke, fused")},
    }
