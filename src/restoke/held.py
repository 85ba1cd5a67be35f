"""What a rank holds in memory, by class, and what a strategy's formula says that it must hold. Pure arithmetic, in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import attrs
from attrs import field, frozen

from restoke.configs import DDPConfig
from restoke.configs.fsdp_rules import replicas
from restoke.spec import Spec

Moment = Literal["before forward", "end of backward", "after the step"]
MOMENTS: tuple[Moment, ...] = ("before forward", "end of backward", "after the step")


@frozen
class Held:
    """Bytes by class. A storage is of one class, and counts once with all its bytes, padding too, however many tensors view it.

    `gathered` are parameters that are whole on this rank for a while, or about to be; `buckets` what gradients are sent from,
    where that is a storage of its own; `activations` what forward and backward made, `other` all else that was seen.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    gathered: int = 0
    buffers: int = 0
    buckets: int = 0
    other: int = 0

    @classmethod
    def of(cls, bytes_by_class: Mapping[str, int]) -> Held:
        return cls(**bytes_by_class)

    @property
    def total(self) -> int:
        return sum(attrs.astuple(self))

    @property
    def state(self) -> int:
        """What belongs to the model and its optimizer: all but activations and other. Formulas speak of this."""
        return self.total - self.activations - self.other


CLASSES = tuple(each.name for each in attrs.fields(Held))


def _shape(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


@frozen
class Weight:
    """A parameter as the user wrote it: its whole shape, the bytes of an element, and whether it is trained."""

    shape: tuple[int, ...] = field(converter=_shape)
    itemsize: int = 4
    trained: bool = True

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    def rows(self, rank: int, shards: int) -> int:
        """The elements in a rank's rows, cut as torch.chunk cuts: the last may have fewer, or none. A scalar is not cut."""
        if not self.shape:
            return 1
        each, first = -(-self.shape[0] // shards), rank * -(-self.shape[0] // shards)
        return min(each, max(0, self.shape[0] - first)) * math.prod(self.shape[1:])

    def padded(self, shards: int) -> int:
        """The bytes of each shard where all are as long as the first."""
        return self.rows(0, shards) * self.itemsize


def _weights(values: Iterable[Any]) -> tuple[Weight, ...]:
    return tuple(value if isinstance(value, Weight) else Weight(**value) for value in values)


@frozen
class Sizes:
    """What formulas are evaluated on: the parameters, the bytes of the buffers, and the optimizer's state, as bytes for each
    element that it steps (Adam in float32: 8) and bytes beside them for each parameter (Adam: 4, its step count)."""

    weights: tuple[Weight, ...] = field(converter=_weights)
    buffers: int = 0
    per_element: float = 0.0
    per_parameter: float = 0.0

    @property
    def parameters(self) -> int:
        return sum(weight.nbytes for weight in self.weights)

    @property
    def trained(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in self.weights if weight.trained)

    @property
    def gradients(self) -> int:
        return sum(weight.nbytes for weight in self.trained)

    def optimizer(self, elements: int, parameters: int) -> int:
        """The bytes of the state for so many elements of so many parameters."""
        return round(self.per_element * elements + self.per_parameter * parameters)


@frozen
class Place:
    """Where a formula is evaluated: a rank of a world of `size`, `per_node` of them on a machine, under a spec."""

    spec: Spec
    rank: int = 0
    size: int = 1
    per_node: int = 1


Formula = Callable[[Sizes, Place, Moment], Held]


def whole(sizes: Sizes, place: Place, moment: Moment) -> Held:
    """Everything, and gradients until the step has used them up."""
    elements = sum(weight.numel for weight in sizes.trained)
    return Held(
        parameters=sizes.parameters,
        gradients=0 if moment == "before forward" else sizes.gradients,
        optimizer=sizes.optimizer(elements, len(sizes.trained)),
        buffers=sizes.buffers,
    )


def replicated(sizes: Sizes, place: Place, moment: Moment) -> Held:
    """As `whole`, and DDP's buckets, which are as large as the gradients and stay. Gradients may be views of them."""
    held = whole(sizes, place, moment)
    views = place.spec.setting(DDPConfig).gradient_as_bucket_view
    return attrs.evolve(held, buckets=sizes.gradients - (held.gradients if views else 0))


def optimizer_in_shares(sizes: Sizes, place: Place, moment: Moment) -> Held:
    """As `replicated`, with the optimizer's state of this rank's rows alone (ZeRO stage 1)."""
    return attrs.evolve(replicated(sizes, place, moment), optimizer=_state_of_rows(sizes, place.rank, place.size))


def sharded(sizes: Sizes, place: Place, moment: Moment) -> Held:
    """Shards of everything over all ranks: rows of each parameter, parameters and gradients padded to equal length."""
    return in_shards(sizes, place.rank, place.size, moment)


def sharded_copies(sizes: Sizes, place: Place, moment: Moment) -> Held:
    """As `sharded`, over the neighbours that hold one copy."""
    shards = place.size // replicas(place.spec, place.size, place.per_node)
    return in_shards(sizes, place.rank % shards, shards, moment)


def in_shards(sizes: Sizes, rank: int, shards: int, moment: Moment) -> Held:
    """What the rank of a group of so many shards holds between steps. No parameter is gathered at a named moment."""
    return Held(
        parameters=sum(weight.padded(shards) for weight in sizes.weights),
        gradients=0 if moment == "before forward" else sum(weight.padded(shards) for weight in sizes.trained),
        optimizer=_state_of_rows(sizes, rank, shards),
        buffers=sizes.buffers,
    )


def _state_of_rows(sizes: Sizes, rank: int, shards: int) -> int:
    return sizes.optimizer(sum(weight.rows(rank, shards) for weight in sizes.trained), len(sizes.trained))
