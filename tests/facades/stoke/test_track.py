"""Losses are followed by the definition, on the host and on a device, and either goes on from the other's checkpoint."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from restoke.errors import CheckpointError
from restoke.facades.stoke.track import BLOCK, DeviceTrack, HostTrack, Track, track
from restoke.world import World

WORLD = World(0, 1, 0, 1, torch.device("cpu"))
KINDS = [HostTrack, DeviceTrack]
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


def copied(it: Track, kind: Any) -> Track:
    other: Track = kind(it.losses, WEIGHT, WORLD)
    other.take(True, [torch.tensor(9.0)] * it.losses)  # what was there does not stay
    other.load_state_dict(json.loads(json.dumps(it.state_dict())))
    return other


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_it_tells_what_the_definition_says(kind: Any, losses: int, seed: int) -> None:
    chance, it, defined = random.Random(seed), kind(losses, WEIGHT, WORLD), [Definition() for _ in range(losses)]
    for _ in range(6 * BLOCK):
        take(it, defined, chance)
        for got, want in zip(told(it), defined, strict=True):
            assert got == pytest.approx(want.told, abs=1e-12)


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_a_checkpoint_goes_on_in_either(before: Any, after: Any) -> None:
    for length in range(3 * BLOCK):
        chance, it, defined = random.Random(length), before(2, WEIGHT, WORLD), [Definition() for _ in range(2)]
        for _ in range(length):
            take(it, defined, chance)
        it = copied(it, after)
        for _ in range(2 * BLOCK):
            for got, want in zip(told(it), defined, strict=True):
                assert got == pytest.approx(want.told, abs=1e-12)
            take(it, defined, chance)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_saving_and_loading_change_no_bit(kind: Any) -> None:
    read, unread, chance = kind(1, WEIGHT, WORLD), kind(1, WEIGHT, WORLD), random.Random(0)
    for _ in range(5 * BLOCK):
        value = torch.tensor(chance.random())
        read.take(True, [value])
        unread.take(True, [value])
        told(read)
        read = copied(read, kind)
    assert told(read) == told(unread)


def test_a_value_is_the_one_at_the_time_whatever_becomes_of_the_tensor() -> None:
    for kind in KINDS:
        it, loss = kind(1, WEIGHT, WORLD), torch.tensor([2.0])
        it.take(True, [loss])
        loss += 1
        assert told(it) == [[2.0, 2.0, 2.0]]


def test_only_what_is_on_the_host_is_read_at_once() -> None:
    assert isinstance(track(1, WEIGHT, WORLD), HostTrack)
    assert isinstance(track(1, WEIGHT, World(0, 1, 0, 1, torch.device("meta"))), DeviceTrack)


def test_another_number_of_losses_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(CheckpointError, match=r"loss=3: this run has 2. Instead: give the loss functions"):
            kind(2, WEIGHT, WORLD).load_state_dict(kind(3, WEIGHT, WORLD).state_dict())
