"""What ranks do with several models and optimizers, and the same by hand under bare DDP."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke.facades.accelerate import Accelerator, FullyShardedDataParallelPlugin
from tests.facades.accelerate.on_ranks import CE, net, weights


class Half(nn.Module):
    """An encoder or a decoder."""

    def __init__(self, seed: int, inputs: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def share(step: int) -> tuple[Tensor, Tensor]:
    """Other data on each rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    made = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=made), torch.randint(3, (4,), generator=made)


def one_optimizer_of_two_models(strategy: str | None, momentum: bool) -> list[list[float]]:
    """Prepared in one call, stepped twice before where `momentum`; by hand without a strategy."""
    halves = [Half(1, 6, 5), Half(2, 5, 3)]
    both = [p for half in halves for p in half.parameters()]
    optimizer: Any = torch.optim.AdamW([{"params": both[:3]}, {"params": both[3:], "lr": 0.02}], lr=0.05)
    if momentum:
        CE(halves[1](halves[0](torch.ones(2, 6))), torch.tensor([0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()
    if strategy is None:
        models: list[Any] = [DistributedDataParallel(half) for half in halves] if dist.is_initialized() else halves
        backward: Any = torch.Tensor.backward
    else:
        accelerator = Accelerator(spec={"strategy": strategy})
        optimizer, *models = accelerator.prepare(optimizer, *halves)
        backward = accelerator.backward
    for step in range(3):
        x, y = share(step)
        backward(CE(models[1](models[0](x)), y))
        optimizer.step()
        optimizer.zero_grad()
    return whole(halves)


def two_optimizers_of_one_model(prepared: bool) -> list[list[float]]:
    model: Any = net()
    first, *rest = model.parameters()
    optimizers: Any = [torch.optim.SGD([first], lr=0.1), torch.optim.AdamW(rest, lr=0.05)]
    backward: Any = torch.Tensor.backward
    if prepared:
        accelerator = Accelerator()
        model, *optimizers = accelerator.prepare(model, *optimizers)
        backward = accelerator.backward
        own = accelerator.unwrap_model(model)
    else:
        own, model = model, DistributedDataParallel(model)
    for step in range(3):
        x, y = share(step)
        backward(CE(model(x), y))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return weights(own)


def whole(models: list[nn.Module]) -> list[list[float]]:
    """Parameters that may be shards, whole."""
    found = [p.detach() for model in models for p in model.parameters()]
    return [getattr(p, "full_tensor", lambda p=p: p)().flatten().double().tolist() for p in found]


def gan(prepared: bool, accumulate: int) -> list[list[float]]:
    """Two models with an optimizer each, in one loop."""
    make, judge = Half(1, 6, 5), Half(2, 5, 1)
    optimizers: Any = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (make, judge)]
    models: Any = [make, judge]
    backward: Any = torch.Tensor.backward
    accelerator = Accelerator(gradient_accumulation_steps=accumulate) if prepared else None
    if accelerator is not None:
        *models, first, second = accelerator.prepare(*models, *optimizers)
        optimizers, backward = [first, second], accelerator.backward
    else:
        models = [DistributedDataParallel(model) for model in models]
    bce = nn.BCEWithLogitsLoss()
    for step in range(4):
        ends = (step + 1) % accumulate == 0
        x, _ = share(step)
        with accelerator.accumulate(*models) if accelerator is not None else by_hand_sync(models, ends):
            scale = 1 if prepared else accumulate
            fake = models[0](x)
            verdict = models[1](torch.cat([torch.ones(4, 5), fake.detach()]))
            backward(bce(verdict, torch.cat([torch.ones(4, 1), torch.zeros(4, 1)])) / scale)
            if prepared or ends:
                optimizers[1].step()
                optimizers[1].zero_grad()
            for p in judge.parameters():
                p.requires_grad_(False)
            backward(bce(models[1](fake), torch.ones(4, 1)) / scale)
            for p in judge.parameters():
                p.requires_grad_(True)
            if prepared or ends:
                optimizers[0].step()
                optimizers[0].zero_grad()
    return weights(make) + weights(judge)


class by_hand_sync:
    def __init__(self, models: list[Any], on: bool) -> None:
        for model in models:
            model.require_backward_grad_sync = on

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *_: object) -> None:
        """Nothing."""


def apart(strategy: str, order: str) -> list[list[float]]:
    """Model and optimizer prepared in two calls, in either order."""
    model: Any = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    own = model
    accelerator = Accelerator(spec={"strategy": strategy})
    for what in order:
        if what == "m":
            model = accelerator.prepare(model)
        else:
            optimizer = accelerator.prepare(optimizer)
    for step in range(3):
        x, y = share(step)
        accelerator.backward(CE(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return whole([own])


def bare(steps: int = 3) -> list[list[float]]:
    own = net()
    model = DistributedDataParallel(own)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = share(step)
        CE(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(own)


def strange_optimizer() -> str:
    accelerator = Accelerator()
    mine = accelerator.prepare(torch.optim.SGD(net().parameters(), lr=0.1))
    model = accelerator.prepare(net())
    accelerator.backward(CE(model(torch.ones(2, 6)), torch.tensor([0, 1])))
    try:
        mine.step()
    except Exception as error:
        return str(error)
    return "stepped"


def several_forwards() -> tuple[list[list[float]], list[list[float]]]:
    """Three forwards without synchronisation, then their backwards, the last of which triggers it; the gradients, and DDP's."""
    accelerator = Accelerator()
    model = accelerator.prepare(net())
    with accelerator.no_sync(model):
        losses = [CE(model(x), y) for x, y in map(share, range(3))]
    for loss in losses[:-1]:
        accelerator.backward(loss)
    with accelerator.trigger_sync_in_backward(model):
        accelerator.backward(losses[-1])
    mine = [p.grad.flatten().tolist() for p in model.parameters()]
    other = DistributedDataParallel(net())
    for x, y in map(share, range(3)):
        CE(other(x), y).backward()
    return mine, [p.grad.flatten().tolist() for p in other.parameters()]  # type: ignore[union-attr]


def sharded_by_plugin() -> list[Any]:
    """Accelerate's plugin on CPUs, with the class of the blocks."""
    plugin = FullyShardedDataParallelPlugin(
        sharding_strategy="FULL_SHARD", transformer_cls_names_to_wrap=["Linear"], activation_checkpointing=False
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    model: Any = net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(3):
        x, y = share(step)
        accelerator.backward(CE(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    state = accelerator.get_state_dict(model)
    return [
        str(accelerator.distributed_type),
        [state[name].flatten().tolist() for name, _ in net().named_parameters()],
        model[0].weight.ndim,
    ]
