"""A model whose head is cut, its batches, and the ways to train it that tests compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke import OptimizerSpec, Session
from restoke.distributed import Group, Shard, copy, gather, gather_rows, group_of
from restoke.facts import Facts
from restoke.nn import register_shard
from restoke.spec import Spec
from restoke.table import problems, rows
from restoke.testing.training import trained

STEPS, ROWS_EACH, FEATURES, CLASSES = 8, 12, 6, 10
SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.2, "momentum": 0.9})
ADAM = OptimizerSpec(torch.optim.AdamW, {"lr": 0.05})
SHARING = [name for name, row in rows().items() if row.usable() and row.shared]
every_row = pytest.mark.parametrize("strategy", SHARING)


def possible(strategy: str, n: int, **axes: Any) -> bool:
    """Whether the strategy can run in so many processes at all."""
    return not problems(
        Spec(strategy=strategy, device="cpu", **axes), Facts(processes=n, launched=True, devices=("cpu",), per_node=n)
    )


class Head(nn.Module):
    """A linear layer whose rows are cut, written as a user would."""

    def __init__(self, group: Group, classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.shard = Shard(group, 0, classes)
        self.weight = nn.Parameter(self.shard.of(torch.randn(classes, 5, generator=generator)).clone())
        self.bias = nn.Parameter(self.shard.of(torch.randn(classes, generator=generator)).clone())
        register_shard(self, "weight", self.shard)
        register_shard(self, "bias", self.shard)

    def forward(self, x: Tensor) -> Tensor:
        return gather(F.linear(copy(x, self.shard.group), self.weight, self.bias), -1, self.shard.group, self.shard.size)


class Model(nn.Module):
    def __init__(self, group: Group, together: bool, classes: int = CLASSES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.group, self.together = group, together
        self.trunk = nn.Linear(FEATURES, 5)
        with torch.no_grad():
            for p in self.trunk.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.head = Head(group, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.trunk(x))
        return self.head(gather_rows(features, self.group) if self.together else features)


def batches(classes: int = CLASSES) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS_EACH, FEATURES)
    return [
        (torch.randn(shape, generator=generator), torch.randint(classes, (ROWS_EACH,), generator=generator))
        for _ in range(STEPS)
    ]


def alone(clip: float | None = None, accumulate: int = 1) -> dict[str, Any]:
    """One process, the whole layer, the whole batch."""
    model = Model(group_of(1), together=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for i, (x, y) in enumerate(batches()):
        (F.cross_entropy(model(x), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def share_of(x: Tensor, session: Session, group: Group, together: bool) -> Tensor:
    """Each rank its rows; or each group its rows, alike on its ranks."""
    world = session.world
    if together:
        return x[world.rank * ROWS_EACH // world.size : (world.rank + 1) * ROWS_EACH // world.size]
    index, groups = world.rank // group.size, world.size // group.size
    return x[index * ROWS_EACH // groups : (index + 1) * ROWS_EACH // groups]


def loss_of(session: Session, group: Group, together: bool, x: Tensor, y: Tensor) -> Tensor:
    own_x, own_y = (share_of(each, session, group, together) for each in (x, y))
    targets = gather_rows(own_y, group) if together else own_y
    return F.cross_entropy(session.forward(own_x), targets)


def in_session(strategy: str, size: int | None, together: bool, **axes: Any) -> dict[str, Any]:
    session = Session(strategy=strategy, device="cpu", **axes)
    group = group_of(size)
    session.prepare(Model(group, together), SGD)
    for x, y in batches():
        session.backward(loss_of(session, group, together, x, y))
        session.step()
    return trained(session)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
