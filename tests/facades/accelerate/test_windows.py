"""Windows of micro-batches where Accelerate divides by the wrong number, or loses count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from restoke.facades.accelerate import Accelerator, GradientAccumulationPlugin
from tests.facades.accelerate.on_ranks import CE, dataset, net


def grads_of(steps: int, batches: int, kind: Any = Accelerator, **options: Any) -> list[float]:
    """The gradient at each optimizer step of a model whose micro-batches have gradient 1."""
    accelerator = kind(gradient_accumulation_steps=steps, **options)
    model = nn.Linear(1, 1, bias=False)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.0), DataLoader(torch.ones(batches, 1), batch_size=1)
    )
    seen = []
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            optimizer.step()
            if accelerator.sync_gradients:
                seen.append(model.weight.grad.item())
            optimizer.zero_grad()
    return seen


def test_a_short_window_weighs_like_the_others() -> None:
    assert grads_of(2, 3) == [1.0, 1.0]  # Accelerate: 1.0, 0.5
    assert grads_of(4, 9) == [1.0, 1.0, 1.0]


def test_a_loader_that_does_not_end_windows_is_carried_over() -> None:
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    assert grads_of(1, 3, gradient_accumulation_plugin=plugin) == [1.0]


def test_an_evaluation_that_is_left_early_does_not_shift_windows() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = net()
    model, optimizer, train, evaluate = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(dataset(12), batch_size=2),
        DataLoader(dataset(8), batch_size=2),
    )
    synced = []
    for x, y in train:
        with accelerator.accumulate(model):
            accelerator.backward(CE(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        synced.append(accelerator.sync_gradients)
        if len(synced) == 3:
            for _ in evaluate:
                break
    assert synced == [False, True] * 3


def test_gradients_survive_a_zero_grad_at_the_top_of_the_loop() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.item()
    for x in (1.0, 3.0):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(model(torch.tensor([[x]])).sum())
            optimizer.step()
    assert model.weight.item() == pytest.approx(before - 2.0)


def test_windows_that_the_script_counts_itself_are_divided_by_what_they_have(capfd: pytest.CaptureFixture[str]) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.item()
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert model.weight.item() == pytest.approx(before - 1.0)
    assert "outside of accelerator.accumulate" in capfd.readouterr().err
