"""Small models whose bytes can be counted by hand, trained as the tests need it; importable by ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import asdict
from torch import Tensor, nn

from restoke.held import Place, Sizes
from restoke.memory.measure import Memory, measure_memory
from restoke.memory.records import RankMemory, sizes_of
from restoke.optim import OptimizerSpec
from restoke.session import Session
from restoke.spec import Spec

ADAM = OptimizerSpec(torch.optim.Adam, {"lr": 0.01})
SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.01})


def net() -> nn.Module:
    """P = (3 x 5 + 5 + 5 + 1) x 4 = 104 bytes in four parameters; no dimension but one divides by two."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def session(model: nn.Module | None = None, optimizer: OptimizerSpec = ADAM, **spec: Any) -> Session:
    made = Session(Spec.of({"strategy": "single", "device": "cpu"} | spec))
    made.prepare(net() if model is None else model, optimizer)
    return made


def batch() -> Tensor:
    return torch.ones(2, 3)


def train(one: Session, micro_batches: int, x: Tensor | None = None) -> None:
    """What is held between the steps is the session's alone: no loss and no batch outlives its turn."""
    for _ in range(micro_batches):
        one.backward(one.forward(batch() if x is None else x).float().sum())
        one.step()


def on_a_rank(spec: Mapping[str, Any], micro_batches: int) -> tuple[dict[str, Any], str]:
    """A rank's record, and the table that all make of theirs together."""
    one = session(**spec)
    with measure_memory(one) as memory:
        train(one, micro_batches)
    return memory.record.plain, memory.table()


def records(ran: list[tuple[dict[str, Any], str]]) -> list[RankMemory]:
    return [RankMemory.of(plain) for plain, _ in ran]


def place(rank: RankMemory) -> Place:
    """Where a formula is evaluated, for the rank of a single machine."""
    return Place(Spec.of(rank.sessions[0].spec), rank.rank, rank.size, rank.size)


def whole_sizes(ran: list[RankMemory]) -> Sizes:
    return sizes_of(ran, 0)


def held(memory: Memory) -> dict[str, dict[str, int]]:
    """Classes and bytes at each moment, without those that have none."""
    return {moment: {k: v for k, v in vars_of(one).items() if v} for moment, one in memory.held.items()}


def vars_of(one: Any) -> dict[str, int]:
    return asdict(one)
