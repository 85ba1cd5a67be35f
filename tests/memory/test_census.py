"""The census counts each storage once, by class, and costs nothing where nobody asks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from restoke.errors import SessionError
from restoke.memory.census import census
from restoke.session import Session
from tests.memory.training import SGD, batch, session, train, vars_of


def found(*sessions: Session) -> dict[str, int]:
    return {kind: nbytes for kind, nbytes in vars_of(census(*sessions).held).items() if nbytes}


def test_a_model_is_counted_as_its_formula_says_at_every_stage() -> None:
    one = session()
    assert found(one) == {"parameters": 104}
    one.backward(one.forward(batch()).sum())
    assert found(one) == {"parameters": 104, "gradients": 104}
    one.step()
    moments_and_step_counts = 2 * 104 + 4 * 4
    assert found(one) == {"parameters": 104, "optimizer": moments_and_step_counts}


def test_parameters_that_are_views_of_one_storage_count_once_with_all_of_it() -> None:
    flat = torch.zeros(100)
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(flat[:16].view(4, 4))
    model.bias = nn.Parameter(flat[16:20])
    assert found(session(model)) == {"parameters": 400}


def test_buffers_and_frozen_parameters_are_counted_and_tied_weights_once() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[2].weight = model[1].weight
    model[0].requires_grad_(False)
    one = session(model, SGD)
    one.backward(one.forward(torch.ones(3, 4)).sum())
    assert found(one) == {"parameters": (4 + 4 + 16) * 4, "buffers": (4 + 4) * 4 + 8, "gradients": 64}


def test_the_values_and_the_indices_of_a_sparse_gradient_are_counted() -> None:
    one = session(nn.Embedding(1000, 4, sparse=True), SGD)
    one.backward(one.forward(torch.tensor([1, 5, 7])).sum())
    assert found(one)["gradients"] == 3 * 4 * 4 + 3 * 8


def test_a_window_of_micro_batches_keeps_one_set_of_gradients() -> None:
    one = session(accumulate=4)
    train(one, 3)
    assert found(one)["gradients"] == 104
    train(one, 1)
    assert "gradients" not in found(one)


def test_several_sessions_are_counted_together() -> None:
    assert found(session(), session()) == {"parameters": 208}


def test_parameters_in_bfloat16_have_half_the_bytes() -> None:
    assert found(session(precision="bf16-true")) == {"parameters": 52}


def test_what_is_not_on_the_device_is_counted_apart() -> None:
    one = session()
    one.parts.module.register_buffer("elsewhere", torch.empty(5, device="meta"))
    assert census(one).held.buffers == 0
    assert census(one).elsewhere.buffers == 20


def test_without_a_model_there_is_nothing_to_count() -> None:
    with pytest.raises(SessionError, match="prepare was not called"):
        census(Session(strategy="single", device="cpu"))
