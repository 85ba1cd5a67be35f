"""What ranks do with an Accelerator, and the same by hand under bare DDP; each function returns what a test compares."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from restoke.facades.accelerate import Accelerator

CE = nn.CrossEntropyLoss()


def net(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def dataset(count: int, seed: int = 1) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=made)
    return TensorDataset(x, (x.sum(dim=1).abs() * 2).long() % 3)


def weights(model: nn.Module) -> list[list[float]]:
    return [p.detach().flatten().double().tolist() for p in model.parameters()]


def trained(
    count: int, accumulate: int, clip: float | None = None, epochs: int = 2, **options: Any
) -> tuple[list[list[float]], list[float], int]:
    """The loop of Accelerate's quick tour: what it comes to, the learning rates, and the optimizer's steps."""
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, **options)
    model, optimizer = net(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    loader = DataLoader(dataset(count), batch_size=4)
    scheduler, loader, model, optimizer = accelerator.prepare(scheduler, loader, model, optimizer)
    rates, steps = [], 0
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = CE(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients and clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
            rates.append(optimizer.param_groups[0]["lr"])
    state = accelerator.session.full_state_dict()
    return [state[name].flatten().double().tolist() for name, _ in net().named_parameters()], rates, steps


def by_hand(
    count: int, accumulate: int, clip: float | None = None, epochs: int = 2
) -> tuple[list[list[float]], list[float], int]:
    """Bare DDP (or bare PyTorch, alone): batches of 4 dealt round robin, the last round filled up from the start."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    own = net()
    model: Any = DistributedDataParallel(own) if size > 1 else own
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    batches = dealt(count, 4, rank, size)
    rates, steps = [], 0
    for _ in range(epochs):
        for begin in range(0, len(batches), accumulate):
            window = batches[begin : begin + accumulate]
            for index, (x, y) in enumerate(window):
                model.require_backward_grad_sync = index + 1 == len(window)
                (CE(model(x), y) / len(window)).backward()
                if index + 1 < len(window):
                    rates.append(optimizer.param_groups[0]["lr"])
            if clip is not None:
                nn.utils.clip_grad_norm_(own.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            steps += 1
            rates.append(optimizer.param_groups[0]["lr"])
    return weights(own), rates, steps


def dealt(count: int, batch: int, rank: int, size: int) -> list[tuple[Tensor, Tensor]]:
    x, y = dataset(count).tensors
    order = list(range(count))
    while len(order) % (batch * size):
        order.append(order[len(order) - count if len(order) >= count else 0])
    batches = (
        [order[i : i + batch] for i in range(0, len(order), batch)]
        if size > 1
        else [list(range(count))[i : i + batch] for i in range(0, count, batch)]
    )
    return [(x[idx], y[idx]) for idx in batches[rank::size]]


def with_strategy(strategy: str, count: int, accumulate: int, clip: float | None) -> Any:
    return trained(count, accumulate, clip, spec={"strategy": strategy})
