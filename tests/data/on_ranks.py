"""What real ranks do with loaders: functions that run on every rank of a pool."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from restoke import OptimizerSpec, Session
from restoke.configs.rendezvous import Rendezvous
from restoke.data import Dealing, Loader, synchronize_rng, take_loader
from restoke.errors import DataError
from restoke.world import World, ranks_here
from tests.data.dealing import Whole
from tests.data.loading import Numbers, Stream

Told = list[tuple[list[int], tuple[int, ...] | None, int, bool]]


class Looking(IterableDataset[int]):
    """Looks at its rank when it is read, and says so to nobody."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(dist.get_rank(), self.length, dist.get_world_size()))


class Disagreeing(Looking):
    """In an order of its own on each rank, whatever the seeds."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        random.SystemRandom().shuffle(order)
        return iter(order)


class Failing(Looking):
    """Fails on rank 0 in its third batch; elsewhere it cannot be read at all."""

    def __iter__(self) -> Iterator[int]:
        if dist.get_rank() > 0:
            raise FileNotFoundError("only rank 0 has it")
        yield from range(8)
        raise OSError("disk is gone")


class Ragged(Looking):
    """Samples whose shapes differ from batch to batch."""

    def __iter__(self) -> Iterator[Any]:
        return iter(
            [{"x": torch.full((number // 2 + 1,), float(number)), "name": str(number)} for number in range(self.length)]
        )


def here() -> World:
    """This rank's world, with generators of its own. Ranks of the pool are daemons, which may have no workers otherwise."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    world = World.join("cpu", ranks_here(), Rendezvous(), many=True)
    torch.manual_seed(world.rank + 3)
    random.seed(world.rank)
    np.random.seed(world.rank)
    return world


def forked(options: dict[str, Any]) -> dict[str, Any]:
    """Workers start as they do in a script: with all that is imported, and the process group."""
    return options | {"multiprocessing_context": "fork"} if options.get("num_workers") else options


def told(loader: Loader) -> Told:
    """All batches of an epoch, and what the loader shows with each."""
    return [(batch.tolist(), loader.real, loader.remainder, loader.end_of_dataloader) for batch in loader]


def batches(kind: str, length: int, size: int, options: dict[str, Any], rules: dict[str, Any]) -> list[list[list[int]]]:
    """Two epochs of a stream, or of a dataset that is shuffled."""
    world = here()
    kinds: dict[str, Any] = {
        "numbers": Numbers,
        "stream": Stream,
        "whole": Whole,
        "looking": Looking,
        "disagreeing": Disagreeing,
    }
    shuffled = {"shuffle": True} if kind == "numbers" else {}
    dataloader = DataLoader(kinds[kind](length), batch_size=size, **shuffled, **forked(options))
    loader = take_loader(dataloader, world=world, dealing=Dealing(**rules))
    return [[batch.tolist() for batch in loader] for _ in range(2)]


def refused(kind: str) -> str:
    world = here()
    kinds: dict[str, Any] = {"disagreeing": Disagreeing(9), "failing": Failing(9)}
    rules = Dealing(dispatch_batches=False) if kind == "disagreeing" else Dealing()
    loader = take_loader(DataLoader(kinds[kind], batch_size=2), world=world, dealing=rules)
    seen: list[int] = []
    try:
        for batch in loader:
            seen += batch.tolist()
    except (DataError, OSError) as error:
        return f"{seen} {type(error).__name__}: {error}"
    return f"{seen}"


def dispatched(cases: list[tuple[str, int, int, dict[str, Any], dict[str, Any]]]) -> list[Told]:
    """An epoch of each, dispatched from rank 0."""
    world = here()
    got = []
    for kind, length, size, options, rules in cases:
        dataset: Any = Whole(length) if kind == "stream" else Numbers(length)
        dataloader = DataLoader(dataset, batch_size=size, **forked(options))
        got.append(told(take_loader(dataloader, world=world, dealing=Dealing(dispatch_batches=True, **rules))))
    return got


def traffic() -> tuple[list[str], int, int]:
    """Names of the samples that came here, bytes that rank 0 sent, and bytes of one batch."""
    world = here()
    sent: list[int] = []
    isend, broadcast = dist.isend, dist.broadcast

    def counting_isend(packet: Any, rank: int) -> Any:
        sent.append(packet.numel() * packet.element_size())
        return isend(packet, rank)

    def counting_broadcast(tensor: Any, source: int = 0) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return broadcast(tensor, source)

    dist.isend, dist.broadcast = counting_isend, counting_broadcast
    try:
        wide = DataLoader(torch.zeros(32, 10_000), batch_size=4)  # type: ignore[arg-type]
        loader = take_loader(wide, world=world, dealing=Dealing(dispatch_batches=True))
        size = max(batch.numel() * batch.element_size() for batch in loader)
    finally:
        dist.isend, dist.broadcast = isend, broadcast
    ragged = DataLoader(Ragged(8), batch_size=2, collate_fn=_by_name)
    rules = Dealing(dispatch_batches=True)
    names = [name for batch in take_loader(ragged, world=world, dealing=rules) for name in batch["names"]]
    return names, sum(sent), size


def _by_name(samples: list[Any]) -> dict[str, Any]:
    return {"x": torch.stack([sample["x"] for sample in samples]), "names": [sample["name"] for sample in samples]}


def left_early() -> list[list[int]]:
    """A dispatched epoch that all ranks leave, and the next one."""
    world = here()
    loader = take_loader(DataLoader(Stream(9), batch_size=2), world=world)
    for _ in loader:
        break
    return [batch.tolist() for batch in loader]


def synchronized() -> list[Any]:
    world = here()
    own = torch.Generator().manual_seed(world.rank)
    synchronize_rng(["torch", "python"], world)
    synchronize_rng(["generator"], world, own)
    return [torch.rand(()).item(), random.random(), np.random.rand(), torch.rand((), generator=own).item()]


def train(folder: str, turn: int, steps: int, way: str, workers: int) -> dict[str, list[int]]:
    """One life of a job of any number of ranks: it loads the newest checkpoint, trains some steps, and saves; then it is gone.
    The last takes as many steps as there are. What each epoch gave to this rank, its repeats left out."""
    world = here()
    session = Session(strategy="ddp" if world.size > 1 else "single", device="cpu")
    session.prepare(nn.Linear(1, 1), OptimizerSpec(torch.optim.SGD, {"lr": 0.0}))
    dataloader = _dataloader(way, workers)
    loader = take_loader(dataloader, world=session.world, dealing=Dealing(dispatch_batches=way == "dispatched"))
    loaders: Any = session.registered["loaders"]
    loaders.add(loader)
    if turn:
        session.load(folder)
    ledger: dict[str, list[int]] = {}
    taken = 0
    while loader.epoch < 2 and taken < steps:
        epoch = str(loader.epoch)
        for batch in loader:
            assert loader.real is not None
            ledger.setdefault(epoch, []).extend(batch.tolist()[: loader.real[world.data_rank]])
            session.backward(session.forward(batch.float().unsqueeze(1)).sum())
            session.step()
            taken += 1
            if taken == steps:
                break
        if taken == steps:
            break
    session.save(Path(folder), str(turn))
    return ledger


def _dataloader(way: str, workers: int) -> DataLoader[Any]:
    options = forked({"num_workers": workers})
    match way:
        case "shuffled":
            return DataLoader(Numbers(37), batch_size=2, shuffle=True, **options)
        case "batches":
            return DataLoader(Numbers(37), batch_sampler=BatchSampler(RandomSampler(Numbers(37)), 3, False), **options)
        case _:
            return DataLoader(Stream(37), batch_size=2, **options)
