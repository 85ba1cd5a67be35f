"""A place in the data that was loaded: the user may go on from it, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DistributedSampler, SequentialSampler

from restoke.data import make_loader
from restoke.errors import DataError
from tests.data.loading import (
    Numbers,
    advance,
    flat,
    flat_after,
    run,
    world,
)


def test_the_user_may_go_forward_from_a_loaded_place_but_not_back_by_mistake() -> None:
    first = make_loader(Numbers(4), world=world())
    run(first, 2)
    advance(first, 2)
    sampler = DistributedSampler(Numbers(4), 1, 0)
    second = make_loader(Numbers(4), world=world(), sampler=sampler)
    second.load_state_dict(first.state_dict())
    sampler.set_epoch(0)
    with pytest.raises(DataError, match=r"batch 2 of epoch 2.*loader.epoch"):
        next(iter(second))
    sampler.set_epoch(2)
    assert len(flat(second)) == 2
    second.load_state_dict(first.state_dict())
    sampler.set_epoch(3)
    assert len(flat(second)) == 4


GOOD = make_loader(Numbers(4), world=world()).state_dict()


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "no state of a loader"),
        (GOOD | {"epoch": -1}, "no state of a loader.*-1"),
        (GOOD | {"position": "x"}, "no state of a loader"),
        (GOOD | {"seeds": [1]}, "no state of a loader"),
        (GOOD | {"unit": "batches"}, "counts samples"),
        (GOOD | {"samplers": [{}]}, "0 generators and 1 samplers"),
        (GOOD | {"samples": 5, "batches": 2, "position": 2}, "5 samples.*this dataset has 4"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, Any], says: str) -> None:
    loader = make_loader(Numbers(4), world=world())
    with pytest.raises(DataError, match=says):
        loader.load_state_dict(state)
    assert flat(loader) == [0, 1, 2, 3]


def test_what_shards_itself_cannot_go_to_another_world_size() -> None:
    class Aware(SequentialSampler):
        num_replicas, rank = 2, 0

    first = make_loader(Numbers(4), world=world(0, 2), sampler=Aware(Numbers(4)))
    advance(first, 1)
    assert flat_after(first.state_dict(), make_loader(Numbers(4), world=world(0, 2), sampler=Aware(Numbers(4)))) == [1, 2, 3]

    class Other(SequentialSampler):
        num_replicas, rank = 3, 0

    with pytest.raises(DataError, match="own batches of 3 ranks"):
        make_loader(Numbers(4), world=world(0, 3), sampler=Other(Numbers(4))).load_state_dict(first.state_dict())
