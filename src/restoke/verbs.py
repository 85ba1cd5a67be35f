"""What a session does in each micro-batch, bound once from its parts: no setting is asked for while training runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from attrs import frozen
from torch import Tensor

from restoke.errors import SessionError
from restoke.parts import Parts, Step

if TYPE_CHECKING:
    from restoke.session import Session


@frozen(eq=False, repr=False)
class Verbs:
    """The functions that a session hands out as its own."""

    forward: Callable[..., Any]
    divide: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], None]
    backward_divided: Callable[[Tensor], None]
    step: Callable[[], Step | None]
    boundary: Callable[[], Step]


def unprepared() -> Verbs:
    """Before `prepare`, each of them refuses."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise SessionError.of("session", "no model", "prepare was not called", "session.prepare(model, optimizer) first")

    return Verbs(refuse, refuse, refuse, refuse, refuse, refuse)


def bind(session: Session, parts: Parts, after: Callable[[], None] | None = None) -> Verbs:
    """The verbs for these parts; where every micro-batch is a window of its own there is nothing to count or divide.

    `after` is called when a window has ended."""
    boundary = _boundary(session, parts)
    if after is not None:
        boundary = _followed(boundary, after)
    return _each_alone(parts, boundary) if session.spec.accumulate == 1 else _in_windows(session, parts, boundary)


def _boundary(session: Session, parts: Parts) -> Callable[[], Step]:
    """Clip, step, clear, and step the schedulers: what ends a window."""
    step, clear, clip, how = parts.stepper.step, parts.stepper.clear, parts.stepper.clip, session.spec.clip
    schedulers = session.schedulers

    def finish(norm: Tensor | None) -> Step:
        stepped = step()
        clear()
        if not stepped:
            session.skipped += 1
            return Step(norm, skipped=True)
        session.steps += 1
        for scheduler in schedulers:
            scheduler.step()
        return Step(norm)

    def unclipped() -> Step:
        return finish(None)

    if how is None:
        return unclipped
    limit = how

    def clipped() -> Step:
        return finish(clip(limit))

    return clipped


def _followed(boundary: Callable[[], Step], after: Callable[[], None]) -> Callable[[], Step]:
    def followed() -> Step:
        step = boundary()
        after()
        return step

    return followed


def _each_alone(parts: Parts, boundary: Callable[[], Step]) -> Verbs:
    parts.set_grad_sync(True)
    backward = parts.stepper.backward
    return Verbs(_under(parts), _whole, backward, backward, boundary, boundary)


def _whole(loss: Tensor) -> Tensor:
    return loss


def _under(parts: Parts) -> Callable[..., Any]:
    """The model's call, under the precision's context where there is one."""
    model, context = parts.model, parts.stepper.forward_context
    if context is nullcontext:
        return model

    def forward(*args: Any, **kwargs: Any) -> Any:
        with context():
            return model(*args, **kwargs)

    return forward


def _in_windows(session: Session, parts: Parts, boundary: Callable[[], Step]) -> Verbs:
    call, windows, rescale = _under(parts), session.windows, parts.stepper.rescale
    accumulate, set_grad_sync = parts.stepper.backward, parts.set_grad_sync

    def forward(*args: Any, **kwargs: Any) -> Any:
        set_grad_sync(windows.ending)
        return call(*args, **kwargs)

    def divide(loss: Tensor) -> Tensor:
        return loss / windows.length

    def backward(loss: Tensor) -> None:
        accumulate(loss / windows.length)

    def end(done: int) -> Step:
        if done != windows.length:
            rescale(windows.length / done)
        windows.close()
        return boundary()

    def step() -> Step | None:
        if windows.ending:
            return end(windows.done + 1)
        windows.done += 1
        return None

    return Verbs(forward, divide, backward, accumulate, step, lambda: end(windows.done))
