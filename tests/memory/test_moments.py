"""Named moments and epochs: when they are, and what is held then."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import TensorDataset

from restoke.errors import SessionError
from restoke.facades.stoke.face import Stoke
from restoke.memory.measure import measure_memory
from tests.memory.training import ADAM, SGD, held, session, train

P, ADAMS = 104, 2 * 104 + 4 * 4
BATCH, LOSS = 2 * 3 * 4, 4


def test_the_three_moments_of_a_step_hold_what_their_formula_says() -> None:
    one = session()
    with measure_memory(one) as memory:
        train(one, 3)
    assert held(memory) == {
        "before forward": {"parameters": P, "optimizer": ADAMS, "other": BATCH},
        "end of backward": {"parameters": P, "gradients": P, "optimizer": ADAMS},
        "after the step": {"parameters": P, "gradients": P, "optimizer": ADAMS},
    }


def test_before_forward_is_before_the_first_forward_of_a_window() -> None:
    one = session(accumulate=3)
    with measure_memory(one) as memory:
        train(one, 5)
        assert "gradients" not in held(memory)["before forward"]
        assert memory.epochs[-1].steps == 1


def test_in_the_first_step_the_optimizer_has_no_state_until_it_has_stepped() -> None:
    one = session()
    with measure_memory(one) as memory:
        train(one, 1)
    assert [each.optimizer for each in memory.held.values()] == [0, 0, ADAMS]


def test_a_script_that_keeps_its_losses_is_shown_them_as_activations() -> None:
    one, kept = session(), []
    with measure_memory(one) as memory:
        for _ in range(4):
            kept.append(one.forward(torch.ones(2, 3)).sum())
            one.backward(kept[-1])
            one.step()
    assert memory.held["after the step"].activations == 4 * LOSS


def test_each_epoch_of_the_session_s_loader_has_its_figures_and_a_validation_cuts_none() -> None:
    one = session()
    data = TensorDataset(torch.ones(8, 3))
    training, validation = one.loader(data, batch_size=2), one.loader(data, batch_size=8)
    with measure_memory(one) as memory:
        for _ in range(3):
            for number, (x,) in enumerate(training):
                train(one, 1, x)
                if number == 1:
                    with torch.no_grad():
                        for (y,) in validation:
                            one.forward(y)
    assert [(epoch.number, epoch.steps, epoch.tracked) for epoch in memory.epochs] == [(0, 4, 4), (1, 4, 4), (2, 4, 4)]
    first, second, third = (epoch.peak for epoch in memory.epochs)
    assert first <= second == third  # while the first runs the optimizer gets its state


def test_of_loaders_within_a_loader_the_outer_one_tells_the_epoch() -> None:
    one = session()
    data = TensorDataset(torch.ones(4, 3))
    outer, inner = one.loader(data, batch_size=2), one.loader(data, batch_size=2)
    with measure_memory(one) as memory:
        for _ in outer:
            for (x,) in inner:
                train(one, 1, x)
    assert [(epoch.number, epoch.steps) for epoch in memory.epochs] == [(0, 4)]


def test_epochs_of_other_loaders_begin_where_the_script_says() -> None:
    one = session()
    with measure_memory(one) as memory:
        train(one, 2, torch.ones(2, 3))
        memory.next_epoch()
        train(one, 1, torch.ones(200, 3))
    assert [(epoch.number, epoch.steps) for epoch in memory.epochs] == [(0, 2), (1, 1)]
    assert memory.peak == memory.epochs[1].peak > memory.epochs[0].peak


def test_only_so_many_steps_of_each_epoch_are_tracked_where_that_is_asked_for() -> None:
    one = session()
    with measure_memory(one, steps=1) as memory:
        train(one, 2, torch.ones(2, 3))
        train(one, 1, torch.ones(200, 3))
        memory.next_epoch()
        train(one, 2, torch.ones(100, 3))
    first, second = memory.epochs
    assert (first.steps, first.tracked, second.tracked) == (3, 1, 1)
    assert first.peak < 200 * 3 * 4 < second.peak
    assert memory.held["after the step"].optimizer == ADAMS


def test_stoke_s_verbs_are_measured_after_they_were_bound() -> None:
    stoke = Stoke(nn.Linear(3, 1), {"optimizer": torch.optim.Adam, "optimizer_kwargs": {}}, nn.MSELoss(), 2, 2, verbose=False)
    with measure_memory(stoke.session) as memory:
        for _ in range(4):
            stoke.backward(stoke.loss(stoke.model(torch.ones(2, 3)), torch.ones(2, 1)))
            stoke.step()
    assert memory.epochs[-1].steps == 2
    assert memory.held["end of backward"].gradients == 16


def test_two_sessions_of_one_script_are_measured_as_one() -> None:
    one, other = session(), session(optimizer=SGD)
    with measure_memory(one, other) as memory:
        train(other, 1)
        train(one, 1)
    assert memory.held["after the step"].parameters == 2 * P
    assert memory.held["after the step"].optimizer == ADAMS
    assert len(memory.record.sessions) == 2


def test_measuring_nothing_is_refused() -> None:
    with pytest.raises(SessionError, match="no session"), measure_memory():
        pass


def test_a_session_without_a_model_is_refused() -> None:
    from restoke.session import Session

    unprepared = Session(strategy="single", device="cpu")
    with pytest.raises(SessionError, match="prepare was not called"), measure_memory(session(), unprepared):
        pass
    assert _get_current_dispatch_mode() is None


def test_measuring_can_begin_again() -> None:
    one, peaks = session(optimizer=ADAM), []
    for _ in range(3):
        with measure_memory(one) as memory:
            train(one, 2)
        peaks.append(memory.peak)
    assert peaks[0] <= peaks[1] == peaks[2]
