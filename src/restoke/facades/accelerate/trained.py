"""A prepared model: its session, and the turns in which its optimizers step."""

from __future__ import annotations

import weakref
from typing import Any, final

import torch
from torch import Tensor, nn

from restoke.facades.accelerate.clip_some import clip_some
from restoke.facades.accelerate.micro import Micro
from restoke.parts import Parts
from restoke.session import Session
from restoke.spec import Clip

_HELD: weakref.WeakKeyDictionary[nn.Module, Trained] = weakref.WeakKeyDictionary()


@final
class Trained:
    """What settles gradients, clips and steps once in a turn, however many optimizers the model has.

    A turn begins with a backward. `forwards` counts those of this turn, where there are several models: gradients of a
    second backward after one forward, which DDP leaves local, are averaged before the step.
    """

    def __init__(self, session: Session, micro: Micro) -> None:
        self.session, self._micro = session, micro
        self.parts: Parts = session.parts
        self.ids = frozenset(id(p) for p in self.parts.module.parameters())
        self.forwards: list[int] | None = None
        self.late = False  # whether gradients wait to be reduced
        self.stepped = False  # whether a step was taken since the loss scale moved
        self._settled = self._turn = self._clipped = -1
        self._backwards_before = 0
        self._due_of = -1
        self._went = False
        self._done: set[int] = set()
        _HELD[self.parts.model] = _HELD[self.parts.module] = self

    def settle(self) -> None:
        """Gradients are whole: reduced, and divided by the window's own length."""
        micro = self._micro
        if self._settled == micro.backwards:
            return
        self._settled = micro.backwards
        if self._missed():
            self.parts.reduce_grads()
        if micro.due != 1.0 and self._due_of != micro.number:
            self._due_of = micro.number
            self.parts.stepper.rescale(micro.due)

    def _missed(self) -> bool:
        if self.forwards is None or not self.parts.own_grads:
            return False
        backwards = self._micro.backwards - self._backwards_before
        return self.session.world.size > 1 and backwards > self.forwards[0]

    def reduce_late(self) -> None:
        """Reduce what backwards of unsynchronised forwards have left local, where it was asked for."""
        if self.late:
            self.late = False
            self.parts.reduce_grads()

    def clip(self, how: Clip) -> Tensor | None:
        """Clip the gradients of the whole model; returns the norm before, or None where values were clipped."""
        self._micro.step_is_due()
        self.settle()
        first, self._clipped = self._clipped != self._micro.backwards, self._micro.backwards
        if first or self.session.scaler is None:
            return self.parts.stepper.clip(how)
        return _again(self, how)

    @property
    def clipped(self) -> bool:
        """Whether this turn's gradients are unscaled and clipped."""
        return self._clipped == self._micro.backwards

    def step(self, who: int) -> bool:
        """The model's step for one of its optimizers; False where it was skipped."""
        if self._turn != self._micro.backwards or who in self._done:
            self._turn = self._micro.backwards
            self._done.clear()
            self._went = self._step()
        self._done.add(who)
        return self._went

    def _step(self) -> bool:
        self._micro.step_is_due()
        self.settle()
        session = self.session
        if session.spec.clip is not None and not self.clipped:
            self.parts.stepper.clip(session.spec.clip)
        went = self.parts.stepper.step()
        session.steps, session.skipped = session.steps + went, session.skipped + (not went)
        self.stepped = True
        self._backwards_before = self._micro.backwards
        if self.forwards is not None:
            self.forwards[0] = 0
        return went

    def count_forwards(self) -> None:
        """From now on: there are several models."""
        if self.forwards is None:
            forwards = self.forwards = [0]

            def count(*_: Any) -> None:
                forwards[0] += torch.is_grad_enabled()

            self.parts.module.register_forward_pre_hook(count)


def _again(trained: Trained, how: Clip) -> Tensor | None:
    """Clip gradients that are unscaled already: torch refuses to unscale them twice."""
    return clip_some([p for p in trained.parts.module.parameters() if p.grad is not None], how)


def trained_of(model: nn.Module) -> Trained | None:
    """What was prepared of this module, given as it was or as `prepare` returned it."""
    return _HELD.get(model)
