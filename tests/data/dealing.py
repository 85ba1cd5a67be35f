"""Loaders taken from DataLoaders, one for each of several ranks in one process, which hear rank 0 as in a broadcast."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler

from restoke.data import Dealing, Loader, SeedableRandomSampler, take_loader
from tests.data.loading import Numbers, Shuffling, Stream, world


class Wire:
    """What rank 0 says, in order, is heard by every other rank; rank 0 goes first."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.heard: Counter[int] = Counter()

    def __call__(self, value: Any, world: Any) -> Any:
        if world.rank == 0:
            self.said.append(json.dumps(value))
            return json.loads(self.said[-1])
        self.heard[world.rank] += 1
        return json.loads(self.said[self.heard[world.rank] - 1])


class Whole(IterableDataset[int]):
    """0 to length - 1 in every worker: it does not look where it is read."""

    rank_aware = False

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Custom:
    """A batch sampler of the user's, with nothing but `__iter__`; sizes 1, 2, 3, 1, ..."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(self.length).tolist()
        size = 1
        while order:
            yield order[:size]
            order, size = order[size:], size % 3 + 1


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


Make = Callable[[int, int, int], DataLoader[Any]]  # of the number of samples, ranks, and this rank
WAYS: dict[str, Make] = {
    "in order": lambda n, size, rank: DataLoader(Numbers(n), batch_size=2),
    "shuffled": lambda n, size, rank: DataLoader(Numbers(n), batch_size=2, shuffle=True),
    "generator": lambda n, size, rank: DataLoader(Numbers(n), batch_size=2, shuffle=True, generator=generator()),
    "sampler's generator": lambda n, size, rank: DataLoader(
        Numbers(n), batch_size=2, sampler=RandomSampler(Numbers(n), generator=generator())
    ),
    "seedable": lambda n, size, rank: DataLoader(Numbers(n), batch_size=2, sampler=SeedableRandomSampler(Numbers(n))),
    "of mine": lambda n, size, rank: DataLoader(Numbers(n), batch_size=3, sampler=Shuffling(n)),  # type: ignore[arg-type]
    "batches": lambda n, size, rank: DataLoader(Numbers(n), batch_sampler=BatchSampler(RandomSampler(Numbers(n)), 2, False)),
    "batches of mine": lambda n, size, rank: DataLoader(Numbers(n), batch_sampler=Custom(n)),  # type: ignore[arg-type]
    "distributed": lambda n, size, rank: DataLoader(
        Numbers(n), batch_size=2, sampler=DistributedSampler(Numbers(n), size, rank)
    ),
}
STREAMS: dict[str, Make] = {
    "stream": lambda n, size, rank: DataLoader(Whole(n), batch_size=2),
    "stream, workers": lambda n, size, rank: DataLoader(Whole(n), batch_size=2, num_workers=2),
    "stream that workers share": lambda n, size, rank: DataLoader(Stream(n), batch_size=2, num_workers=2),
    "stream, shuffled": lambda n, size, rank: DataLoader(Stream(n, shuffled=True), batch_size=2),
}


def taken(make: Make, n: int, size: int, **rules: Any) -> list[Loader]:
    """One loader for each rank, whose generators differ when it is made. Streams are known to be the same on all."""
    loaders = []
    for rank in range(size):
        torch.manual_seed(rank + 5)
        loaders.append(take_loader(make(n, size, rank), world=world(rank, size), dealing=Dealing(**rules)))
        trust(loaders[-1])
    return loaders


def trust(loader: Loader) -> None:
    """The ranks of one process cannot compare what they read."""
    if hasattr(loader._source, "_unproven"):
        loader._source._unproven = False


def real_samples(loader: Loader, steps: int = 10**9) -> list[int]:
    """The real ones of the next so many batches; the iteration is left then."""
    got: list[int] = []
    for number, batch in enumerate(loader, 1):
        assert loader.real is not None
        assert loader.sizes is not None
        assert loader.sizes[loader.world.data_rank] == len(batch)
        got += [int(sample) for sample in batch][: loader.real[loader.world.data_rank]]
        if number == steps:
            break
    return got


def seeded(rank: int) -> None:
    """The process's generators, of this rank alone."""
    torch.manual_seed(rank + 31)
    random.seed(rank)
    np.random.seed(rank)
