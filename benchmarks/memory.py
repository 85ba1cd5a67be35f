"""What each strategy holds in memory, by class, on 1, 2 and 4 ranks, against the formula of its row.

    python benchmarks/memory.py --json memory.json

A transformer of 50 million parameters is trained for some steps by Adam in float32 under every strategy of the table, on real
ranks over gloo; how much each rank holds is taken at each named moment. Ends with 1 where a class of any rank is further from
its formula than 1 %. Peaks are of tracked storages; the saving is in what is held after a step, mean over ranks, against DDP.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from restoke import OptimizerSpec, Session, Spec
from restoke.facts import Facts
from restoke.held import CLASSES, MOMENTS, Held, Moment, Place
from restoke.memory.measure import measure_memory
from restoke.memory.records import RankMemory, sizes_of
from restoke.memory.table import saving, size
from restoke.table import problems, rows, usable
from restoke.testing import ranks

BOUND = 0.01
WIDTH, LAYERS, VOCABULARY = 512, 14, 11003  # an odd vocabulary: shards of it are padded


class Transformer(nn.Module):
    """An encoder with an output layer tied to its embedding; `scale` divides its width and its vocabulary."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        width, words = WIDTH // scale, VOCABULARY // scale
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def on_a_rank(strategy: str, scale: int, steps: int) -> dict[str, Any]:
    """What one rank measured, as plain values."""
    torch.manual_seed(0)
    session = Session(Spec(strategy=strategy, device="cpu"))
    session.prepare(Transformer(scale), OptimizerSpec(torch.optim.Adam, {"lr": 1e-4}))
    tokens = torch.randint(VOCABULARY // scale, (2, 16))
    with measure_memory(session) as memory:
        for _ in range(steps):
            logits = session.forward(tokens)
            session.backward(nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()))
            session.step()
            del logits
    return memory.record.plain


@frozen
class Found:
    """A strategy on so many ranks: held and due by rank and moment, and the largest error of any class."""

    strategy: str
    n: int
    ranks: list[RankMemory]
    due: list[dict[Moment, Held]]

    @classmethod
    def of(cls, strategy: str, n: int, measured: list[RankMemory]) -> Found:
        formula = rows()[strategy].memory
        assert formula is not None
        sizes = sizes_of(measured, 0)
        places = [Place(Spec.of(rank.sessions[0].spec), rank.rank, n, n) for rank in measured]
        return cls(strategy, n, measured, [{moment: formula(sizes, place, moment) for moment in MOMENTS} for place in places])

    def held(self, rank: int, moment: Moment) -> Held:
        """What the formula speaks of."""
        return attrs.evolve(self.ranks[rank].epochs[-1].held[moment], activations=0, other=0)

    def error(self, moment: Moment) -> float:
        """Of the class and rank furthest off, relative to what is due of it; of a class that must be empty, to the total."""
        return max(error(self.held(rank, moment), due[moment]) for rank, due in enumerate(self.due))

    @property
    def plain(self) -> dict[str, Any]:
        moments = {
            moment: {
                "held": [attrs.asdict(self.held(rank, moment)) for rank in range(self.n)],
                "formula": [attrs.asdict(due[moment]) for due in self.due],
                "error": self.error(moment),
            }
            for moment in MOMENTS
        }
        peaks = [rank.epochs[-1].peak for rank in self.ranks]
        return {"strategy": self.strategy, "ranks": self.n, "moments": moments, "peaks": peaks, "saving": saving(self.ranks)}


def error(held: Held, due: Held) -> float:
    """The largest relative difference of any class."""
    return max(abs(getattr(held, kind) - getattr(due, kind)) / (getattr(due, kind) or due.total) for kind in CLASSES)


def measure(counts: Sequence[int], scale: int, steps: int) -> Iterator[Found | str]:
    """Every strategy of the table that has a formula, on each number of ranks; a line for each that cannot run there."""
    for strategy in usable():
        row = rows()[strategy]
        if row.memory is None:
            yield f"{strategy}: its row has no formula"
            continue
        for n in counts if row.processes == "many" else (1,):
            facts = Facts(processes=n, per_node=n, launched=True, devices=("cpu",))
            if found := problems(Spec(strategy=strategy, device="cpu"), facts):
                yield f"{strategy} on {n}: {found[0].why}"
                continue
            plain = ranks.run(n, on_a_rank, strategy, scale, steps, timeout=1800)
            yield Found.of(strategy, n, [RankMemory.of(each) for each in plain])


def table(found: Sequence[Found]) -> Table:
    grid = Table(title="Held on a rank, mean over ranks; the error is of the class and rank furthest from its formula")
    for name in ("strategy", "ranks", *MOMENTS, "worst error", "peak", "less than DDP"):
        grid.add_column(name, justify="left" if name == "strategy" else "right")
    for one in found:
        states = [size(sum(one.held(rank, moment).total for rank in range(one.n)) / one.n) for moment in MOMENTS]
        worst = max(map(one.error, MOMENTS))
        peak = size(sum(rank.epochs[-1].peak for rank in one.ranks) / one.n)
        grid.add_row(one.strategy, str(one.n), *states, f"{worst:.2%}", peak, f"{saving(one.ranks) or 0:.1%}")
    return grid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1, help="divides width and vocabulary, for a quick look")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console, found = Console(width=130), []
    console.print(f"{sum(p.numel() for p in Transformer(args.scale).parameters()) / 1e6:.1f} million parameters")
    for one in measure(args.ranks, args.scale, args.steps):
        if isinstance(one, str):
            console.print(one)
        else:
            found.append(one)
            console.print(f"{one.strategy} on {one.n}: {max(map(one.error, MOMENTS)):.3%}")
    console.print(table(found))
    if args.json is not None:
        plain = {"bound": BOUND, "scale": args.scale, "points": [one.plain for one in found]}
        args.json.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    return int(any(one.error(moment) > BOUND for one in found for moment in MOMENTS))


if __name__ == "__main__":
    sys.exit(main())
