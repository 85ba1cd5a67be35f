"""A small classifier, its data and its Stoke object, and the same training by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from restoke import Stoke, StokeOptimizer

SGD = StokeOptimizer(optimizer=torch.optim.SGD, optimizer_kwargs={"lr": 0.1, "momentum": 0.9})
CE = nn.CrossEntropyLoss()


def net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batches(count: int, size: int = 8, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, size, 6, generator=made)
    return [(x, (x.sum(dim=1).abs() * 2).long() % 3) for x in inputs]


def samples(count: int, seed: int = 1) -> list[tuple[Tensor, int]]:
    return [(x[0], int(y[0])) for x, y in batches(count, 1, seed)]


def stoke(loss: Any = CE, batch_size: int = 8, **options: Any) -> Stoke:
    """Quiet, unless told otherwise."""
    model, optimizer = options.pop("model", None) or net(), options.pop("optimizer", SGD)
    return Stoke(model, optimizer, loss, batch_size, **{"verbose": False} | options)


def micro_step(it: Stoke, x: Tensor, y: Tensor) -> Any:
    """Stoke's four verbs, on one micro-batch."""
    loss = it.loss(it.model(x), y)
    it.backward(loss)
    it.step()
    return loss


def weights(model: nn.Module) -> list[list[float]]:
    return [p.detach().flatten().double().tolist() for p in model.parameters()]


def by_hand(data: list[tuple[Tensor, Tensor]], accumulate: int = 1, clip: float | None = None) -> list[list[float]]:
    """The weights that a loop in bare PyTorch comes to."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(data):
        loss = CE(model(x), y)
        (loss / accumulate if accumulate > 1 else loss).backward()
        if (index + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)
