"""What two ranks do with checkpoints; each function returns what a test compares."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from restoke.facades.accelerate import Accelerator, ProjectConfiguration
from tests.facades.accelerate.collective_work import refusal
from tests.facades.accelerate.on_ranks import CE, dataset, net, weights


def run_on(accelerator: Any, epochs: int, stop: int | None, folder: str | None = None) -> list[Any]:
    """A run that is saved after `stop` batches, or that is taken up from there."""
    model = net()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader: Any = DataLoader(dataset(40), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    own = Counter()
    accelerator.register_for_checkpointing(own)
    if folder is not None:
        accelerator.load_state(folder)
    seen: list[Any] = []
    for _ in range(loader.epoch, epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(CE(model(x), y))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            own.value += 1
            seen.append([x.sum().item(), own.value, optimizer.param_groups[0]["lr"]])
            if stop is not None and len(seen) == stop:
                return seen
    state = accelerator.session.full_state_dict()
    return [*seen, [state[name].flatten().tolist() for name, _ in net().named_parameters()]]


class Counter:
    value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def interrupted(folder: str, strategies: tuple[str, str]) -> list[Any]:
    """Stopped in the middle of an epoch and of a window, and taken up under another strategy."""
    first = Accelerator(gradient_accumulation_steps=2, spec={"strategy": strategies[0]})
    seen = run_on(first, 2, 3)
    path = first.save_state(os.path.join(folder, "state"))
    second = Accelerator(gradient_accumulation_steps=2, spec={"strategy": strategies[1]})
    return [*seen, *run_on(second, 2, None, path)]


def uninterrupted() -> list[Any]:
    return run_on(Accelerator(gradient_accumulation_steps=2), 2, None)


def saved_on_one_rank() -> str:
    accelerator = Accelerator()
    accelerator._patience = 0.5
    model = accelerator.prepare(net())
    if accelerator.is_main_process:
        return refusal(accelerator.save_state, "/nowhere")
    del model
    return "elsewhere"


def called_apart() -> str:
    """One rank saves, the other one loads."""
    accelerator = Accelerator()
    if accelerator.is_main_process:
        return refusal(accelerator.save_state, "/nowhere")
    return refusal(accelerator.load_state, "/nowhere")


def several_models(folder: str) -> list[Any]:
    """Two models with one optimizer: saved, spoiled and restored; and hooks."""
    accelerator = Accelerator(project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2))
    models = [net(1), nn.Linear(3, 2)]
    optimizer: Any = torch.optim.AdamW([p for model in models for p in model.parameters()], lr=0.05)
    optimizer, *prepared = accelerator.prepare(optimizer, *models)
    told: list[Any] = []
    accelerator.register_save_state_pre_hook(lambda given, states, where: told.append([len(given), len(states)]))

    def step() -> None:
        accelerator.backward(prepared[1](prepared[0](torch.ones(2, 6))).square().sum())
        optimizer.step()
        optimizer.zero_grad()

    step()
    paths = [os.path.basename(accelerator.save_state()) for _ in range(3)]
    step()
    expected = [weights(model) for model in models]
    step()
    accelerator.load_state()
    step()
    found = [weights(model) for model in models]
    kept = sorted(name for name in os.listdir(os.path.join(folder, "checkpoints")) if name[0] != ".")
    return [
        paths,
        kept,
        expected == found,
        told[0],
        accelerator.save_iteration,
    ]
