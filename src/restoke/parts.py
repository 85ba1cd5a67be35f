"""The protocol: a strategy is one function, `prepare`, that returns these parts; a `Session` drives them.

Three things hold for every strategy, and tests/contract checks them for each row of the table: parameter names are those of
the model the user passed; the loss that `backward` gets is already divided by the accumulation; and what `capture` gives,
any other strategy's `restore` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, final

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.optim import OptimizerSpec
from restoke.precision import LossScaler
from restoke.spec import Clip, Precision, Spec
from restoke.world import World


class Step(NamedTuple):
    """What an optimizer step did: the gradients' norm before clipping (where the spec clips by norm), and whether an
    overflow of the loss scale made it skip."""

    norm: Tensor | None = None
    skipped: bool = False


@frozen(eq=False, repr=False)
class Stepper:
    """What one training step does, as functions bound once: torch's own (`restoke.steppers`), or an engine's."""

    forward_context: Callable[[], AbstractContextManager[Any]]  # what the forward and the loss run under
    backward: Callable[[Tensor], None]  # adds the loss's gradients to the parameters'
    rescale: Callable[[float], None]  # multiplies the gradients, where a window of micro-batches ended short
    clip: Callable[[Clip], Tensor | None]  # unscales and clips; returns the norm before
    step: Callable[[], bool]  # steps the optimizer; False where it skipped
    clear: Callable[[], None]  # drops the gradients
    scaler: LossScaler | None = None


@frozen(eq=False, repr=False)
class Chunk:
    """A piece of a tensor: `tensor` sits at `offsets` of the whole, whose shape is `shape`. A whole tensor is one chunk."""

    tensor: Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: Tensor) -> Chunk:
        return cls(tensor, tuple(tensor.shape), (0,) * tensor.ndim)


@frozen(eq=False, repr=False)
class Captured:
    """What one rank holds of a state: chunks of tensors by key, and plain values (JSON, tuples, tensors) by key.

    Keys are paths: `model/NAME`, `optimizer/NAME/FIELD`, with the user's own parameter names. Ranks may hold the same chunk.
    """

    chunks: dict[str, Chunk] = field(factory=dict)
    values: dict[str, Any] = field(factory=dict)


class Saved(Protocol):
    """A state to restore from; tensors are read when asked for."""

    values: Mapping[str, Any]

    def keys(self) -> Collection[str]:
        """The keys of its tensors."""

    def shape(self, key: str) -> tuple[int, ...]:
        """The global shape."""

    def dtype(self, key: str) -> torch.dtype:
        """The dtype as saved."""

    def read(self, key: str, offsets: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """A new CPU tensor: the whole, or the box of `shape` at `offsets`."""


class State(Protocol):
    """The state of a model and its optimizer, keyed by the user's own parameter names."""

    def capture(self) -> Captured:
        """What this rank holds. Every rank calls this."""

    def restore(self, saved: Saved, strict: bool) -> list[str]:
        """Copy in what belongs to this rank; returns what was left out, which `strict` refuses."""


@final
@frozen(eq=False, repr=False)
class Layout:
    """Which part of the model's tensors this rank holds: all of each (`WHOLE`), or shards as its functions tell."""

    place: Callable[[Tensor], Place]  # the whole's shape, and where this rank's part begins
    local: Callable[[Tensor], Tensor]  # the part, which shares the tensor's memory
    like: Callable[[Tensor, Tensor], Tensor]  # a part, as a tensor that lies and is laid out as another

    def cuts(self, tensor: Tensor) -> bool:
        """Whether this rank holds less than the whole of it."""
        return self.place(tensor).shape != tuple(self.local(tensor.detach()).shape)

    def chunk(self, tensor: Tensor) -> Chunk:
        """This rank's part of a tensor of the model, or of one laid out as it."""
        return Chunk(self.local(tensor.detach()), *self.place(tensor))

    def read(self, saved: Saved, key: str, tensor: Tensor) -> Tensor:
        """What this rank holds of the tensor, as it was saved: a new CPU tensor."""
        return saved.read(key, self.place(tensor).offsets, tuple(self.local(tensor.detach()).shape))


class Place(NamedTuple):
    """The shape of a whole tensor, and where in it this rank's part begins."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]


WHOLE = Layout(
    place=lambda tensor: Place(tuple(tensor.shape), (0,) * tensor.ndim),
    local=lambda tensor: tensor,
    like=lambda part, other: part.to(other.device),
)


def _nothing_is_gathered() -> None:
    """Each rank's parameters are what they are."""


def _nothing_is_pending() -> None:
    """Gradients are where torch has them."""


@frozen(eq=False, repr=False)
class Parts:
    """What a strategy made of a model and an optimizer."""

    model: nn.Module  # what forward is called on
    module: nn.Module  # the user's own model inside it
    optimizer: Optimizer  # what schedulers get
    stepper: Stepper
    state: State
    set_grad_sync: Callable[[bool], None]  # called before a forward: does the backward after it end a window?
    reduce_grads: Callable[[], None]  # averages gradients that were kept local: a window ended where none had announced it
    layout: Layout = WHOLE  # which part of each parameter, and so of its gradient, is here
    reshard: Callable[[], None] = _nothing_is_gathered  # before parameters are read or written: frees those that are gathered
    abandon: Callable[[], None] = _nothing_is_pending  # drops what a window, or a forward that failed, left in the engine
    average_shards: Callable[[], None] = _nothing_is_pending  # averages gradients of shards over the ranks with the same ones
    own_grads: bool = True  # whether a half window's gradients are whole and each rank's own; else `reduce_grads` makes shards
    local_buffers: bool = False  # whether each rank's buffers are its own for good, not rank 0's from the next forward on


@frozen(eq=False, repr=False)
class Request:
    """What a strategy is asked to make parts of. `precision` is the spec's; `scaler` the one to share, if any."""

    spec: Spec
    world: World
    model: nn.Module
    optimizer: OptimizerSpec
    precision: Precision
    scaler: LossScaler | None


Prepare = Callable[[Request], Parts]
