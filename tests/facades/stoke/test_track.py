"""Losses are followed by the definition, whatever happens, and go on from a checkpoint."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from restoke.errors import CheckpointError, SessionError
from restoke.facades.stoke.track import BLOCK, Track
from restoke.world import World

WORLD = World(0, 1, 0, 1, torch.device("cpu"))
WEIGHT = 0.3


class Definition:
    """What is followed, by its definition, of one loss."""

    def __init__(self) -> None:
        self.last, self.averaged, self.window = 0.0, list[float](), list[float]()

    def take(self, training: bool, value: float) -> None:
        self.last = value
        if training:
            self.averaged.append(value)
            self.window.append(value)

    @property
    def told(self) -> list[float]:
        ema = self.averaged[0] if self.averaged else 0.0
        for value in self.averaged[1:]:
            ema = WEIGHT * value + (1 - WEIGHT) * ema
        return [self.last, ema, sum(self.window)]


def told(it: Track) -> list[list[float]]:
    return torch.stack([it.last, it.ema, it.total]).T.tolist()


def take(it: Track, defined: list[Definition], chance: random.Random) -> None:
    """One thing that can happen to it, to both."""
    what = chance.choices(["train", "evaluate", "window", "ema", "reset"], [20, 4, 4, 1, 0.3])[0]
    if what in ("train", "evaluate"):
        values = [chance.uniform(-3, 3) for _ in defined]
        it.take(what == "train", [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values])
        for one, value in zip(defined, values, strict=True):
            one.take(what == "train", value)
        return
    {"window": it.begin_window, "ema": it.begin_ema, "reset": it.reset}[what]()
    for one in defined:
        if what == "reset":
            one.last = 0.0
        if what in ("window", "reset"):
            one.window = []
        if what in ("ema", "reset"):
            one.averaged = []


def copied(it: Track) -> Track:
    other = Track(it.losses, WEIGHT, WORLD)
    other.take(True, [torch.tensor(9.0)] * it.losses)  # what was there does not stay
    other.load_state_dict(json.loads(json.dumps(it.state_dict())))
    return other


@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_it_tells_what_the_definition_says(losses: int, seed: int) -> None:
    chance, it, defined = random.Random(seed), Track(losses, WEIGHT, WORLD), [Definition() for _ in range(losses)]
    for _ in range(6 * BLOCK):
        take(it, defined, chance)
        for got, want in zip(told(it), defined, strict=True):
            assert got == pytest.approx(want.told, abs=1e-12)


def test_a_checkpoint_goes_on() -> None:
    for length in (0, 1, 2, BLOCK // 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3):
        chance, it, defined = random.Random(length), Track(2, WEIGHT, WORLD), [Definition() for _ in range(2)]
        for _ in range(length):
            take(it, defined, chance)
        it = copied(it)
        for _ in range(BLOCK + 50):
            for got, want in zip(told(it), defined, strict=True):
                assert got == pytest.approx(want.told, abs=1e-12)
            take(it, defined, chance)


def test_an_average_and_a_window_may_begin_where_a_block_ends() -> None:
    it = Track(1, WEIGHT, WORLD)
    for _ in range(BLOCK):
        it.take(True, [torch.tensor(1.0)])
    it.begin_ema()
    it.begin_window()
    it.take(True, [torch.tensor(5.0)])
    assert told(it) == [[5.0, 5.0, 5.0]]


def test_reading_saving_and_loading_change_no_bit() -> None:
    read, unread, chance = Track(1, WEIGHT, WORLD), Track(1, WEIGHT, WORLD), random.Random(0)
    for _ in range(5 * BLOCK):
        value = torch.tensor(chance.random())
        read.take(True, [value])
        unread.take(True, [value])
        told(read)
        read = copied(read)
    assert told(read) == told(unread)


def followed(it: Track) -> tuple[Any, nn.Module]:
    """A loss that is its argument, followed; and the module whose mode decides."""
    module = nn.Identity()
    return it.following(lambda value: value, module), module


def test_the_only_loss_is_followed_as_it_is_called() -> None:
    it, defined, chance = Track(1, WEIGHT, WORLD), Definition(), random.Random(3)
    loss, module = followed(it)
    for _ in range(3 * BLOCK):
        number = chance.random()
        value = torch.full(chance.choice([(), (), (1,), (1, 1)]), number, dtype=torch.float64, requires_grad=True)
        module.train(chance.random() < 0.8)
        assert loss(value) is value
        defined.take(module.training, number)
        assert told(it)[0] == pytest.approx(defined.told, abs=1e-9)


@pytest.mark.parametrize("wrong", [3.0, np.ones(()), (torch.ones(()),), torch.ones(2), None])
@pytest.mark.parametrize("training", [True, False])
def test_what_is_no_number_in_a_tensor_is_refused_and_not_followed(wrong: Any, training: bool) -> None:
    it = Track(1, WEIGHT, WORLD)
    loss, module = followed(it)
    module.train(training)
    loss(torch.tensor(2.0))
    before = told(it)
    with pytest.raises(SessionError, match="a loss is one number in a tensor"):
        loss(wrong)
    with pytest.raises(SessionError, match="a loss is one number in a tensor"):
        it.take(training, [wrong])
    assert told(it) == before


def test_a_value_is_the_one_at_the_time_whatever_becomes_of_the_tensor() -> None:
    it, value = Track(1, WEIGHT, WORLD), torch.tensor([2.0])
    loss, _ = followed(it)
    for way in (lambda given: it.take(True, [given]), loss, lambda given: loss(given.squeeze())):
        it.reset()
        value.fill_(2.0)
        way(value)
        value.add_(1)
        assert told(it) == [[2.0, 2.0, 2.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_no_dtype_is_rounded(dtype: torch.dtype) -> None:
    it, value = Track(1, 1.0, WORLD), torch.tensor(1 / 3, dtype=dtype)
    for way in (followed(it)[0], lambda given: it.take(True, [given])):
        it.reset()
        way(value)
        assert it.ema.item() == it.last.item() == value.item()


class _Reads(TorchDispatchMode):
    """Fails where a value is brought from its device to Python."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), "a loss was read"
        return func(*args, **(kwargs or {}))


def test_following_reads_nothing() -> None:
    one, two, value = Track(1, WEIGHT, WORLD), Track(2, WEIGHT, WORLD), torch.tensor(2.0)
    loss, module = followed(one)
    with _Reads():
        for i in range(2 * BLOCK + 2):
            module.train(i % 2 == 0)
            loss(value)
            two.take(True, [value, value])


def test_another_number_of_losses_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"loss=3: this run has 2. Instead: give the loss functions"):
        Track(2, WEIGHT, WORLD).load_state_dict(Track(3, WEIGHT, WORLD).state_dict())
