"""Datasets and samplers to load from, and worlds of several data ranks in one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from restoke.data import Loader, make_loader
from restoke.world import World

CPU = torch.device("cpu")


def world(rank: int = 0, size: int = 1, device: torch.device = CPU) -> World:
    return World(rank, size, rank, size, device)


def loaders(dataset: Callable[[], Any] | Any, size: int, **options: Any) -> list[Loader]:
    """One loader for each rank; callables are called for each, so that ranks share no object."""

    def made(value: Any) -> Any:
        return value() if callable(value) and not isinstance(value, Dataset) else value

    return [
        make_loader(made(dataset), world=world(rank, size), **{name: made(value) for name, value in options.items()})
        for rank in range(size)
    ]


def flat(batches: Any) -> list[int]:
    """The samples of all batches, in order."""
    return [int(sample) for batch in batches for sample in batch]


def lists(batches: Any) -> list[list[int]]:
    return [[int(sample) for sample in batch] for batch in batches]


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.loaded.append(int(index))
        return int(index)


class Noisy(Dataset[torch.Tensor]):
    """Sample i is i and what a transform drew from each of the three generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()], dtype=torch.float64)


class Stream(IterableDataset[int]):
    """0 to length - 1; workers share them; `shuffled` by the process's own generator."""

    def __init__(self, length: int, shuffled: bool = False) -> None:
        self.length, self.shuffled = length, shuffled

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        order = list(range(self.length))
        if self.shuffled and info is None:
            random.shuffle(order)
        return iter(order) if info is None else iter(order[info.id :: info.num_workers])


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.length


class Shuffling:
    """A sampler of the user's that shuffles with one of the process's generators, and has nothing but `__iter__`."""

    def __init__(self, length: int, generator: str = "python") -> None:
        self.length, self.generator = length, generator

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        match self.generator:
            case "python":
                random.shuffle(order)
            case "numpy":
                order = np.random.permutation(self.length).tolist()
            case _:
                order = torch.randperm(self.length).tolist()
        yield from order


class Record:
    """A watcher that notes all it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, loader: Any) -> None:
        self.told.append("begin")

    def batch(self, loader: Any, remaining: int | None, last: bool) -> None:
        self.told.append((remaining, last))

    def end(self, loader: Any) -> None:
        self.told.append("end")


def advance(loader: Loader, batches: int) -> list[list[int]]:
    """The next so many batches; the iteration is left then."""
    got = []
    for batch in loader:
        got.append(np.ravel(batch).tolist())
        if len(got) == batches:
            break
    return got


def run(loader: Loader, count: int) -> list[list[list[int]]]:
    return [[np.ravel(batch).tolist() for batch in loader] for _ in range(count)]


def flat_after(state: dict[str, Any], loader: Loader) -> list[int]:
    loader.load_state_dict(state)
    return flat(loader)
