"""How many batches a second a loader gives, beside torch's DataLoader: ours, made or taken over, and accelerate's.

    python benchmarks/data.py --json data.json

A batch is more than 1 ms of work (products of matrices) and 32 samples in random order; the contenders take turns in one
process: without workers in CPU time, with two workers by the clock; and in two processes, where torch's is given a
DistributedSampler.
Ratios are of batches per second, medians over rounds with their 95 % interval; "torch, again" is the same loader twice.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from attrs import frozen
from paired import Times, compare, interleave, machine, pooled
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from restoke.configs.rendezvous import Rendezvous
from restoke.data import make_loader, take_loader
from restoke.testing import ranks
from restoke.world import World, ranks_here

TORCH, AGAIN = "torch", "torch, again"
MADE, TAKEN = "restoke, made", "restoke, taken"
BOUNDS = {MADE: 0.97, TAKEN: 0.97}
BATCH, BATCHES = 32, 256
SIDE, SECONDS = 64, 1.25e-3  # of the matrices, and of the work for a batch
Next = Callable[[], object]


@frozen
class Place:
    """Where it is measured."""

    processes: int
    workers: int

    @property
    def name(self) -> str:
        return f"{self.processes} process{'es' if self.processes > 1 else ''}, {self.workers or 'no'} workers"


PLACES = (Place(1, 0), Place(1, 2), Place(2, 0))


class Work(Dataset[Tensor]):
    """Samples that take a while: `products` of matrices for a batch."""

    products = 1

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        matrix = torch.full((SIDE, SIDE), 1 / SIDE)
        for _ in range(self.products):
            matrix = matrix @ matrix
        return [matrix[index % SIDE] for index in indices]


def calibrate() -> None:
    """Choose the products so that the quickest batch of several is long enough, on this machine."""
    Work.products = 50
    times = []
    for _ in range(40):
        start = time.process_time()
        Work(BATCH).__getitems__(list(range(BATCH)))
        times.append(time.process_time() - start)
    Work.products = round(50 * SECONDS / min(times))


def torchs(world: World, workers: int) -> DataLoader[Tensor]:
    """The user's own, as each of several processes needs it, too."""
    data = Work(BATCH * BATCHES * world.size)
    if world.size == 1:
        return DataLoader(data, batch_size=BATCH, shuffle=True, **_started(workers))
    sampler = DistributedSampler(data, world.size, world.rank)
    return DataLoader(data, batch_size=BATCH, sampler=sampler, **_started(workers))


def made(world: World, workers: int) -> Any:
    data = Work(BATCH * BATCHES * world.size)
    return make_loader(data, world=world, batch_size=BATCH, shuffle=True, seed=0, **_started(workers))


def taken(world: World, workers: int) -> Any:
    data = Work(BATCH * BATCHES * world.size)
    return take_loader(DataLoader(data, batch_size=BATCH, shuffle=True, **_started(workers)), world=world)


def accelerates(world: World, workers: int) -> Any:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    Accelerator(cpu=True)
    data = Work(BATCH * BATCHES * world.size)
    own = DataLoader(data, batch_size=BATCH, shuffle=True, **_started(workers))
    return prepare_data_loader(own, world.device, world.size, world.rank, put_on_device=True, rng_types=["generator"])


def _started(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}


CONTENDERS: dict[str, Callable[[World, int], Any]] = {TORCH: torchs, AGAIN: torchs, MADE: made, TAKEN: taken}
PEERS = {"accelerate": accelerates}


def present() -> dict[str, Callable[[World, int], Any]]:
    """The contenders, with the peers that are installed."""
    return CONTENDERS | {name: make for name, make in PEERS.items() if importlib.util.find_spec(name)}


def endless(loader: Any) -> Next:
    """The next batch, epoch after epoch."""
    batches: Iterator[Any] = chain.from_iterable(repeat(loader))
    return lambda: next(batches)


def measure(place: Place, rounds: int, per_turn: int) -> Times:
    """Seconds of each batch, by contender, on this rank. Ranks wait for each other ahead of each turn."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # ranks of a pool have workers, too
    world = World.join("cpu", ranks_here(), Rendezvous(), many=place.processes > 1)
    calibrate()
    steps = {name: endless(make(world, place.workers)) for name, make in present().items()}
    before = dist.barrier if world.size > 1 else lambda: None
    clock = time.perf_counter if place.workers else time.process_time
    return interleave(steps, rounds, per_turn, warm_up=per_turn, before=before, clock=clock)


@frozen
class Rate:
    """A contender's batches per second, and them by the reference's, with the interval."""

    batches: float
    ratio: float
    low: float
    high: float


def rates(times: Times) -> dict[str, Rate]:
    """From seconds per batch."""
    found = compare(times, TORCH)
    return {name: Rate(1 / one.seconds, 1 / one.ratio, 1 / one.high, 1 / one.low) for name, one in found.items()}


def show(console: Console, title: str, found: dict[str, Rate]) -> None:
    """One place's table."""
    table = Table("", "per second", "torch = 1", "95 %", "bound", title=title, title_justify="left")
    for name, rate in found.items():
        bound = BOUNDS.get(name)
        verdict = "" if bound is None else f"{bound} {'met' if rate.ratio >= bound else 'MISSED'}"
        table.add_row(name, f"{rate.batches:.0f}", f"{rate.ratio:.3f}", f"{rate.low:.3f} to {rate.high:.3f}", verdict)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--per-turn", type=int, default=16, help="batches in each turn")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    versions = {name: version(name) for name in PEERS if name in present()}
    result: dict[str, Any] = {"machine": machine() | versions, "bounds": BOUNDS, "places": []}
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in result["machine"].items()))
    for place in PLACES:
        task = (measure, place, args.rounds, args.per_turn)
        measured = ranks.run(place.processes, *task, timeout=3600) if place.processes > 1 else [measure(*task[1:])]
        found = rates(pooled(measured))
        show(console, place.name, found)
        plain = {name: attrs.asdict(rate) for name, rate in found.items()}
        result["places"].append(attrs.asdict(place) | {"rounds": args.rounds, "contenders": plain})
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
