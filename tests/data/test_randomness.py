"""What transforms draw: repeatable after a resume, different on each rank, and the user's own seeds obeyed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from restoke.data import make_loader
from restoke.seeds import rng_state, set_rng_state
from tests.data.loading import (
    CPU,
    Noisy,
    advance,
    loaders,
    world,
)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_workers_draw_is_the_same_after_a_resume_with_other_workers_too(workers: int) -> None:
    def run(state: Any, workers: int) -> torch.Tensor:
        loader = make_loader(Noisy(12), world=world(), batch_size=2, shuffle=True, num_workers=workers, seed=5)
        if state is not None:
            loader.load_state_dict(state)
        return torch.cat(list(loader))

    first = make_loader(Noisy(12), world=world(), batch_size=2, shuffle=True, num_workers=1, seed=5)
    advance(first, 2)
    whole = run(None, 1)
    assert torch.equal(run(first.state_dict(), workers), whole[4:])
    assert len(whole[:, 1:].unique()) == 36


def test_what_workers_draw_differs_by_rank_and_epoch() -> None:
    drawn = []
    for loader in loaders(Noisy(2), 2, num_workers=1, seed=5):
        drawn += [torch.cat(list(loader))[0, 1:] for _ in range(2)]
    assert len(torch.cat(drawn).unique()) == 12


def numpy_of_mine(worker: int) -> None:
    np.random.seed(77)


def test_a_worker_init_of_the_users_is_obeyed() -> None:
    loader = make_loader(Noisy(1), world=world(), num_workers=1, worker_init_fn=numpy_of_mine)
    (batch,) = loader
    assert batch[0, 3].item() == np.random.RandomState(77).rand()


def test_without_workers_a_transform_draws_on_from_the_restored_generators() -> None:
    """And between the batches the training draws from them too."""

    def step(batch: Any) -> list[float]:
        return [*batch.flatten().tolist(), torch.rand(()).item()]

    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    first, got, saved = make_loader(Noisy(8), world=world(), batch_size=2, shuffle=True), [], None
    for number, batch in enumerate(first):
        got.append(step(batch))
        if number == 1:
            saved = first.state_dict(), rng_state(CPU)
    assert saved is not None
    second = make_loader(Noisy(8), world=world(), batch_size=2, shuffle=True)
    second.load_state_dict(saved[0])
    set_rng_state(saved[1], CPU)
    assert [step(batch) for batch in second] == got[2:]
