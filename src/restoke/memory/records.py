"""What a rank says of its memory, as values that travel as JSON: to the other ranks, or to the launcher. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import attrs
from attrs import field, frozen

from restoke.held import Held, Place, Sizes, replicated
from restoke.spec import Spec


def _held(value: Any) -> Held:
    return value if isinstance(value, Held) else Held.of(value)


def _by_moment(value: Mapping[str, Any]) -> dict[str, Held]:
    return {moment: _held(held) for moment, held in value.items()}


@frozen(kw_only=True)
class Epoch:
    """The memory of one epoch: bytes at the peak and, of its last optimizer step, at each named moment.

    `tracked` of its optimizer steps were followed for the classes at the peak. `elsewhere` is not on the device: offloaded.
    """

    number: int
    steps: int
    tracked: int
    peak: int
    at_peak: Held = field(converter=_held)
    held: dict[str, Held] = field(converter=_by_moment)
    elsewhere: dict[str, Held] = field(converter=_by_moment)


@frozen
class State:
    """An optimizer's state on one rank: bytes shaped as the parameters and the elements of those, and what lies beside."""

    shaped: int = 0
    elements: int = 0
    beside: int = 0
    parameters: int = 0

    def __add__(self, other: State) -> State:
        return State(*(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))


def _sizes(value: Any) -> Sizes:
    return value if isinstance(value, Sizes) else Sizes(**value)


def _state(value: Any) -> State:
    return value if isinstance(value, State) else State(**value)


@frozen(kw_only=True)
class Trained:
    """A session: what it was declared as, the sizes of its model, and this rank's part of the optimizer's state."""

    spec: Mapping[str, Any]
    sizes: Sizes = field(converter=_sizes)
    state: State = field(converter=_state)


def _epochs(values: Iterable[Any]) -> tuple[Epoch, ...]:
    return tuple(value if isinstance(value, Epoch) else Epoch(**value) for value in values)


def _sessions(values: Iterable[Any]) -> tuple[Trained, ...]:
    return tuple(value if isinstance(value, Trained) else Trained(**value) for value in values)


@frozen(kw_only=True)
class RankMemory:
    """What one rank measured. `source` says what its peaks are of: the allocator, or tracked storages."""

    rank: int
    size: int
    device: str
    source: str
    epochs: tuple[Epoch, ...] = field(converter=_epochs)
    sessions: tuple[Trained, ...] = field(converter=_sessions)

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**plain)


def sizes_of(ranks: Sequence[RankMemory], session: int) -> Sizes:
    """A session's sizes, the optimizer's state per element and per parameter found from all ranks' parts of it."""
    state = sum((rank.sessions[session].state for rank in ranks), State())
    return attrs.evolve(
        ranks[0].sessions[session].sizes,
        per_element=state.shaped / max(1, state.elements),
        per_parameter=state.beside / max(1, state.parameters),
    )


def under_ddp(ranks: Sequence[RankMemory]) -> int:
    """What a rank would hold under DDP after a step, by its formula: parameters, gradients, their buckets, optimizer state,
    buffers. Not collective: from the sizes that the ranks recorded."""
    total = 0
    for number, trained in enumerate(ranks[0].sessions):
        place = Place(Spec.of(trained.spec), 0, ranks[0].size)
        total += replicated(sizes_of(ranks, number), place, "after the step").total
    return total
