"""Sharded checkpoints against torch's own files, and how long a save beside training stalls a step; checksums, fsync included.

    python benchmarks/checkpoint.py --json checkpoint.json

Each rank holds its rows of a transformer's weights and Adam's moments, 1 GB over all ranks. Saving is measured against
`torch.save` and fsync of each rank's rows into a file of its own; loading against `torch.load(mmap=False)` of that file; both
end with new tensors of which every byte has been read once more. The stall is the time that `Session.save(wait=False)` takes,
for a model of which all ranks hold all and each writes a share, against a plain copy of that share into memory that was touched
before. Contenders take turns in the same processes, a turn lasts until the slowest rank is done, and ratios are medians over
rounds with their 95 % interval. Files that are read are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from attrs import frozen
from paired import Ratio, Times, compare, interleave, machine
from rich.console import Console
from rich.table import Table
from torch import Tensor

from restoke import OptimizerSpec, Session, checkpoint
from restoke.checkpoint.saving import agree_on
from restoke.comm import barrier
from restoke.configs.rendezvous import Rendezvous
from restoke.parts import Captured, Chunk
from restoke.session_state import capture
from restoke.testing import ranks
from restoke.world import World, ranks_here

OURS, TORCH, COPY = "restoke", "torch", "plain copy"
LAYERS = 8
BLOCKS = {"attention": 3, "projection": 1, "up": 4, "down": 4}  # rows of a layer's weights, in widths of the model
FIELDS = ("model", "exp_avg", "exp_avg_sq")


@frozen
class Measure:
    """What is compared with what. `bound` is on the throughput, or on the time where `slower` is allowed."""

    title: str
    reference: str
    contender: str
    bound: float
    slower: bool = False

    def verdict(self, found: Ratio) -> dict[str, Any]:
        """The contender's figures; the ratio is of throughputs, unless `slower`."""
        figures = attrs.asdict(found)
        if not self.slower:
            figures |= {"ratio": 1 / found.ratio, "low": 1 / found.high, "high": 1 / found.low}
        met = figures["ratio"] <= self.bound if self.slower else figures["ratio"] >= self.bound
        return figures | {"bound": self.bound, "met": met}


MEASURES = {
    "save": Measure("save, throughput of torch.save + fsync = 1", TORCH, OURS, 0.9),
    "load": Measure("load, throughput of torch.load = 1", TORCH, OURS, 0.8),
    "stall": Measure("stall of save(wait=False), time of a plain copy = 1", COPY, OURS, 1.5, slower=True),
}


def shapes(size: int) -> dict[str, tuple[int, int]]:
    """A transformer's matrices, with Adam's moments, of about so many bytes in float32."""
    width = max(8, round(math.sqrt(size / (4 * LAYERS * len(FIELDS) * sum(BLOCKS.values())))))
    return {
        f"{field}/{layer}.{block}": (rows * width, width)
        for field in FIELDS
        for layer in range(LAYERS)
        for block, rows in BLOCKS.items()
    }


def rows_of(world: World, rows: int) -> tuple[int, int]:
    """The first row of this rank, and how many it has."""
    step = -(-rows // world.size)
    start = min(world.rank * step, rows)
    return start, min(step, rows - start)


def sharded(world: World, size: int) -> Captured:
    chunks = {}
    for key, (rows, width) in shapes(size).items():
        start, count = rows_of(world, rows)
        chunks[key] = Chunk(torch.rand(count, width), (rows, width), (start, 0))
    return Captured(chunks, {"extras": {"epoch": 1}})


def touched(tensors: dict[str, Tensor]) -> int:
    """Every byte is read."""
    return sum(int(tensor.view(torch.int32).sum()) for tensor in tensors.values())


@frozen
class Bench:
    """One rank's work, in a folder that all share."""

    world: World
    folder: Path
    captured: Captured

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {key: chunk.tensor for key, chunk in self.captured.chunks.items()}

    @property
    def file(self) -> Path:
        return self.folder / f"{self.world.rank}.pt"

    def save(self) -> None:
        checkpoint.write(self.folder / "restoke", "step", self.captured, self.world, meta={})

    def torch_save(self) -> None:
        with self.file.open("xb") as file:
            torch.save(self.tensors, file)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> None:
        saved = checkpoint.read(self.folder / "restoke", None, self.world)
        chunks = self.captured.chunks
        touched({key: saved.read(key, it.offsets, tuple(it.tensor.shape)) for key, it in chunks.items()})

    def torch_load(self) -> None:
        touched(torch.load(self.file, mmap=False))

    def empty(self) -> None:
        """The files of earlier turns go untimed, and the disk comes to rest."""
        barrier(self.world)
        self.file.unlink(missing_ok=True)
        if self.world.is_main:
            shutil.rmtree(self.folder / "restoke", ignore_errors=True)
            os.sync()
        barrier(self.world)


def measure(folder: Path, size: int, rounds: int) -> dict[str, Times]:
    """Seconds of each turn on this rank."""
    torch.set_num_threads(1)
    world = World.join("cpu", ranks_here(), Rendezvous(), many=dist.is_initialized() or ranks_here().size > 1)
    warnings.simplefilter("ignore")
    bench = Bench(world, folder, sharded(world, size))
    found = {"save": _timed({OURS: bench.save, TORCH: bench.torch_save}, rounds, bench.empty)}
    bench.empty()
    bench.save()
    bench.torch_save()
    found["load"] = _timed({OURS: bench.load, TORCH: bench.torch_load}, rounds, lambda: barrier(world))
    del bench
    stall = Stall.of(world, folder, size)
    found["stall"] = _timed({OURS: stall.save, COPY: stall.copy}, rounds, stall.rest)
    stall.rest()
    return found


@frozen
class Stall:
    """A session that saves beside training, and a plain copy of what this rank writes."""

    session: Session
    folder: Path
    own: dict[str, Tensor]
    into: dict[str, Tensor]

    @classmethod
    def of(cls, world: World, folder: Path, size: int) -> Stall:
        session = Session(strategy="ddp" if world.size > 1 else "single", device="cpu")
        width = max(8, round(math.sqrt(size / (4 * LAYERS * len(FIELDS)))))
        layers = [torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
        session.prepare(torch.nn.Sequential(*layers), OptimizerSpec(torch.optim.AdamW, {"lr": 1e-3}))
        session.backward(session.forward(torch.rand(1, width)).mean())
        session.step()
        own = agree_on(folder, "step", capture(session, {}), world, meta={}, keep=None).own()
        return cls(session, folder / "beside", dict(own), {key: torch.zeros_like(it) for key, it in own.items()})

    def save(self) -> None:
        self.session.save(self.folder, "step", wait=False)

    def copy(self) -> None:
        for key, tensor in self.own.items():
            self.into[key].copy_(tensor)

    def rest(self) -> None:
        self.session.wait_saved()
        barrier(self.session.world)
        if self.session.world.is_main:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.sync()
        barrier(self.session.world)


def _timed(steps: dict[str, Callable[[], None]], rounds: int, before: Callable[[], object]) -> Times:
    for step in steps.values():  # warm-up
        before()
        step()
    return interleave(steps, rounds, 1, warm_up=0, before=before, clock=time.perf_counter)


def slowest(measured: list[dict[str, Times]]) -> dict[str, Times]:
    """Of each turn the time of the rank that took longest."""
    return {
        name: {who: [max(turn) for turn in zip(*(times[name][who] for times in measured), strict=True)] for who in its}
        for name, its in measured[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one is made in it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "megabytes": args.megabytes, "rounds": args.rounds, "runs": []}
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in result["machine"].items()))
    for processes in args.processes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            task = (Path(folder), args.megabytes * 1_000_000, args.rounds)
            measured = slowest(ranks.run(processes, measure, *task, timeout=3600))
        for name, times in measured.items():
            figures = judged(MEASURES[name], times)
            show(console, f"{MEASURES[name].title}, {processes} process{'es' if processes > 1 else ''}", figures)
            result["runs"].append({"measure": name, "processes": processes, "contenders": figures, "seconds": times})
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def judged(measure: Measure, times: Times) -> dict[str, dict[str, Any]]:
    """Each contender against the reference; the bound is on one of them."""
    found = compare(times, measure.reference)
    plain = {name: attrs.asdict(ratio) for name, ratio in found.items()}
    return plain | {measure.contender: measure.verdict(found[measure.contender])}


def show(console: Console, title: str, figures: dict[str, dict[str, Any]]) -> None:
    """One measure's table."""
    table = Table("", "seconds", "ratio", "95 %", "bound", title=title, title_justify="left")
    for name, row in figures.items():
        verdict = f"{row['bound']} {'met' if row['met'] else 'MISSED'}" if "bound" in row else ""
        table.add_row(name, f"{row['seconds']:.4f}", f"{row['ratio']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}", verdict)
    console.print(table)


if __name__ == "__main__":
    main()
