"""Where a loader stands in its data, and that as a plain state."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from attrs import Factory, define

from restoke.data.randomness import Seeds
from restoke.errors import DataError


@define
class Position:
    """A place in an epoch: `start` units of the order were consumed, in `number` batches, before this iteration began, which
    has yielded `yielded` batches since. The states of generators and samplers are those at the start of the epoch."""

    epoch: int
    start: int = 0
    number: int = 0
    yielded: int = 0
    seeds: Seeds | None = None
    generators: list[torch.Tensor] = Factory(list)
    samplers: list[Any] = Factory(list)
    shares: list[int] = Factory(list)  # samples taken of each worker's own share of a stream

    def skip(self, batches: int, stride: int) -> None:
        """Leave out so many batches of this rank, and those of the others in the same steps."""
        self.start += batches * stride
        self.number += batches

    def saved(self, unit: str, stride: int, samples: int | None) -> dict[str, Any]:
        """As plain values and tensors; `samples` is the length of the dataset."""
        return {
            "samples": samples,
            "epoch": self.epoch,
            "batches": self.number + self.yielded,
            "position": self.start + self.yielded * stride,
            "unit": unit,
            "seeds": None if self.seeds is None else [self.seeds.order, self.seeds.workers],
            "generators": self.generators,
            "samplers": self.samplers,
            "shares": list(self.shares),
        }


def read_position(state: Mapping[str, Any], unit: str, samples: int | None, generators: int, samplers: int) -> Position:
    """The place that a state names.

    Raises:
        DataError: the state is damaged, or of a loader that takes its data in another way.
    """
    try:
        epoch, number, start = (_count(state, name) for name in ("epoch", "batches", "position"))
        seeds, found = state["seeds"], state["unit"]
        made = None if seeds is None else Seeds(*(operator.index(seed) for seed in seeds))
        held, length = (list(state["generators"]), list(state["samplers"])), state["samples"]
        shares = [operator.index(share) for share in state["shares"]]
    except (KeyError, TypeError, ValueError) as error:
        why = f"it is no state of a loader ({type(error).__name__}: {error})"
        raise DataError.of("state", type(state).__name__, why, "what state_dict() gave") from error
    if found != unit:
        why = f"this loader counts {unit}: its sampler, batch_sampler or dataset is of another kind"
        raise DataError.of("state", f"unit {found}", why, "a loader made as the saved one was")
    if length != samples and number:
        why = f"this dataset has {samples}: within an epoch its order cannot be continued"
        raise DataError.of("state", f"{length} samples", why, "the same dataset, or a state between two epochs")
    if (len(held[0]), len(held[1])) != (generators, samplers):
        why = f"it has {len(held[0])} generators and {len(held[1])} samplers, this loader {generators} and {samplers}"
        raise DataError.of("state", unit, why, "a loader made as the saved one was")
    return Position(epoch, start, number, 0, made, *held, shares)


def _count(state: Mapping[str, Any], name: str) -> int:
    number = operator.index(state[name])
    if number < 0:
        raise ValueError(f"{name} is {number}")
    return number
