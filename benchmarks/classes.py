"""What a head over many classes and its loss hold and cost on 1, 2 and 4 ranks, against what they need at least.

    python benchmarks/classes.py --json classes.json --figures figures/

Peaks are of tracked bytes of each rank over a forward and a backward, on real ranks over gloo; larger points without values.
Ends with 1 where restoke's peak is above 1.05 of what is due, or above torch's `loss_parallel`, or the CPU time of its loss is
above that of `loss_parallel` (the interval's lower end), or where 2,000,000 classes do not fit on 8 cards of 12 GB by the model
that the peaks confirm. The fused head computes its logits twice, which is a third more products: its time is shown. Times are
of paired turns, with the interval that holds the median with 95 % confidence.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attrs
import class_drawing
import class_model
import torch
import torch.distributed as dist
from attrs import frozen
from class_heads import FEATURES, HEADS, ROWS, due
from class_losses import LOSSES, buffers
from paired import Ratio, compare, interleave, machine, pooled
from rich.console import Console
from rich.table import Table

from restoke.configs.rendezvous import Rendezvous
from restoke.ranks import discover
from restoke.testing import ranks
from restoke.world import World

BOUND = 1.05
OURS = ("separate", "fused")
SHARED = ("loss_parallel", *OURS)


def join() -> None:
    torch.set_num_threads(1)
    World.join("cpu", discover(), Rendezvous(), many=True)


def peaks_on_a_rank(classes: int, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Of each head: the peak, and what is due."""
    join()
    found = {}
    for name in names:
        head = HEADS[name](classes, "cpu")
        found[name] = (head.peak(), due(name, classes, "cpu"))
        del head
    return found


def buffers_on_a_rank(classes: int, rows: int) -> dict[str, float]:
    join()
    return {name: buffers(name, classes, rows) for name in LOSSES}


def times_on_a_rank(classes: int, rounds: int, per_turn: int) -> dict[str, list[float]]:
    join()
    steps = {name: HEADS[name](classes, "cpu").step for name in SHARED}
    return interleave(steps, rounds, per_turn, warm_up=2)


@frozen
class Point:
    """So many classes on so many ranks: bytes of the rank that holds the most. `ratio` is of CPU time to loss_parallel's."""

    classes: int
    ranks: int
    peak: dict[str, int]
    due: dict[str, int]
    time: dict[str, Ratio]

    @property
    def problems(self) -> list[str]:
        where = f"{self.classes} classes on {self.ranks}"
        found = [
            f"{where}: {name} holds {self.peak[name] / self.due[name]:.3f} of what is due" for name in OURS if self.over(name)
        ]
        other = self.peak.get("loss_parallel")
        found += [f"{where}: {name} holds more than loss_parallel" for name in OURS if other and self.peak[name] > other]
        slow = "separate" in self.time and self.time["separate"].low > 1
        return found + ([f"{where}: separate takes {self.time['separate'].ratio:.2f} of loss_parallel's time"] if slow else [])

    def over(self, name: str) -> bool:
        return self.peak[name] > BOUND * self.due[name]


def measured(classes: int, n: int, rounds: int, per_turn: int) -> Point:
    names = ("dense", *SHARED) if n == 1 else SHARED
    found = ranks.run(n, peaks_on_a_rank, classes, names, timeout=1800)
    peak = {name: max(rank[name][0] for rank in found) for name in names}
    least = {name: max(rank[name][1] for rank in found) for name in names}
    times = (
        compare(pooled(ranks.run(n, times_on_a_rank, classes, rounds, per_turn, timeout=1800)), "loss_parallel")
        if rounds
        else {}
    )
    return Point(classes, n, peak, least, times)


def larger(sizes: list[int], n: int) -> list[Point]:
    """Without values, on the first rank of a group that sends nothing."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as process:
        return process.submit(_larger_on_a_rank, sizes, n).result()


def _larger_on_a_rank(sizes: list[int], n: int) -> list[Point]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=n, store=FakeStore())
    found = []
    for classes in sizes:
        peak = {name: HEADS[name](classes, "meta").peak() for name in SHARED}
        found.append(Point(classes, n, peak, {name: due(name, classes, "meta") for name in SHARED}, {}))
    return found


def table(points: list[Point], title: str) -> Table:
    grid = Table(title=title)
    for name in (
        "classes",
        "ranks",
        "dense",
        *SHARED,
        *(f"{name} / due" for name in OURS),
        *(f"{name}: time" for name in OURS),
    ):
        grid.add_column(name, justify="right")
    for point in points:
        sizes = [f"{point.peak[name] / 2**20:.1f}" if name in point.peak else "" for name in ("dense", *SHARED)]
        parts = [f"{point.peak[name] / point.due[name]:.3f}" for name in OURS]
        times = [f"{r.ratio:.2f} [{r.low:.2f}, {r.high:.2f}]" if (r := point.time.get(name)) else "" for name in OURS]
        grid.add_row(f"{point.classes:,}", str(point.ranks), *sizes, *parts, *times)
    return grid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--larger", type=int, nargs="*", default=[2_000_000, 4_000_000, 8_000_000], help="without values")
    parser.add_argument("--rounds", type=int, default=15, help="of turns; 0: no times")
    parser.add_argument("--timed", type=int, default=100_000, help="classes at most where steps are timed: all heads live then")
    parser.add_argument("--per-turn", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figures", type=Path, help="a folder for the three figures")
    args = parser.parse_args()
    console = Console(width=150)
    counts = ranks.run(2, buffers_on_a_rank, 65_536, 256)[0]
    console.print("Buffers of the logits' size at a loss's peak: " + ", ".join(f"{k} {v:.2f}" for k, v in counts.items()))
    points = []
    for classes in args.classes:
        for n in args.ranks:
            points.append(measured(classes, n, args.rounds if classes <= args.timed else 0, args.per_turn))
            console.print(f"{classes:,} on {n}", *points[-1].problems)
    console.print(
        table(points, f"Peak of a rank, MiB; features {FEATURES}, rows {ROWS}; CPU time of a step to loss_parallel's")
    )
    beyond = larger(args.larger, 8) if args.larger else []
    console.print(table(beyond, "Without values"))
    problems = [problem for point in points + beyond for problem in point.problems] + class_model.report(
        console, counts["separate"]
    )
    if args.figures is not None:
        class_drawing.draw(args.figures)
    if args.json is not None:
        plain = {"machine": machine(), "buffers": counts, "points": [attrs.asdict(point) for point in points + beyond]}
        args.json.write_text(json.dumps(plain | {"model": class_model.plain()}, indent=2) + "\n", encoding="utf-8")
    console.print(*problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
