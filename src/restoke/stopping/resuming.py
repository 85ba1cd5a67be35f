"""Going on where a run was stopped, and stopping it so that it can: a checkpoint that all ranks save after the same step."""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch.distributed as dist
from attrs import frozen

from restoke.checkpoint.agree import alone
from restoke.checkpoint.generations import is_checkpoint, present
from restoke.errors import SessionError
from restoke.said import say
from restoke.stopped import Stopped, promise
from restoke.stopping import signals
from restoke.stopping.ballot import Ballot, lacking
from restoke.stopping.gate import NEVER, Gate
from restoke.stopping.listener import ACKNOWLEDGED, Alone, Listener, Together
from restoke.world import World

if TYPE_CHECKING:
    from restoke.session import Session

Extras = Callable[[], Mapping[str, Any]]
_NUMBER = itertools.count()  # of the calls of `resume`, alike on all ranks


def resume_one(session: Session, folder: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """`Session.resume`."""
    session.parts  # noqa: B018 - raises without a model
    whole = Whole(
        last=session,
        save=session.save,
        load=lambda folder, strict: session.load(folder, strict=strict),
    )
    return begin(whole, folder, **options)


@final
@frozen(kw_only=True)
class Whole:
    """What is saved as one: `last` is the session whose step ends an iteration."""

    last: Session
    save: Callable[[Path, str, Mapping[str, Any], int | None], str]
    load: Callable[[Path, bool], dict[str, Any]]


@final
@frozen(kw_only=True)
class Plan:
    """Where and how often to save."""

    folder: Path
    every: int | None
    keep: int | None
    extras: Extras


def begin(
    whole: Whole,
    folder: str | os.PathLike[str],
    *,
    every: int | None,
    keep: int | None,
    extras: Extras | None,
    strict: bool,
    names: Iterable[str | int] | None,
) -> dict[str, Any]:
    """Load what there is, and from then on save and leave where a signal asks for it. Every rank calls this."""
    world = whole.last.world
    plan = Plan(folder=Path(folder).absolute(), every=_count("every", every), keep=_count("keep", keep), extras=_asked(extras))
    _refuse_second()
    numbers = signals.wanted(names, world.launcher is not None)
    signals.check(numbers)
    loaded = {} if alone(lambda: _is_fresh(plan.folder), world, plan.folder) else whole.load(plan.folder, strict)
    _ACTIVE.append(Stopping(whole, plan, numbers))
    promise()
    return loaded


def _count(name: str, value: int | None) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise SessionError.of(name, value, "it counts from one", f"{name}=1 or more, or leave it out")
    return value


def _asked(extras: Extras | None) -> Extras:
    given: Any = extras
    if given is not None and not callable(given):
        why = "it is asked for anew at each save, and so must be a function"
        raise SessionError.of("extras", type(given).__name__, why, "extras=lambda: {'best': best}")
    return extras or dict


def _refuse_second() -> None:
    if _ACTIVE:
        why = "this process stops and resumes another session already, and can stop at one place only"
        instead = "restoke.resume(folder, {'a': a, 'b': b}) for both, or restoke.stopping.end() after the first"
        raise SessionError.of("resume", "twice", why, instead)


def _is_fresh(folder: Path) -> bool:
    """Whether there is nothing to go on from: no folder yet, or none of our checkpoints in it."""
    return not folder.exists() or (folder.is_dir() and not is_checkpoint(folder) and not present(folder))


@final
class Stopping:
    """Of one rank: saves at the boundaries that are due, and where all agree to stop, saves and leaves."""

    def __init__(self, whole: Whole, plan: Plan, numbers: tuple[Any, ...]) -> None:
        self._whole, self._plan, self._gate = whole, plan, Gate()
        self._due = self._next_due()
        self._gate.open(self._due)
        self._stopped: Stopped | None = None
        self.listener = listen(self._gate, numbers, whole.last.world)
        whole.last.attach(self._gate.counting(self._look_up))

    def _look_up(self) -> None:
        """At a boundary with something to do."""
        gate = self._gate
        gate.wait()
        if gate.missing:
            raise lacking(gate.missing, f"did not answer within {ACKNOWLEDGED:.0f} s")
        if gate.done >= gate.decision:
            if self._stopped is not None or self.listener.all_here():
                self._stop()
            gate.decide(NEVER)  # a rank has finished its data: the run comes to its end by itself
        if gate.done >= self._due:
            if self._whole.last.steps % (self._plan.every or 1) == 0:  # not where overflows were skipped on the way
                self._save()
            self._due = self._next_due()
        gate.open(self._due)

    def _next_due(self) -> int:
        every = self._plan.every
        return NEVER if every is None else self._gate.done + every - self._whole.last.steps % every

    def _save(self) -> str:
        plan = self._plan
        return self._whole.save(plan.folder, f"step-{self._whole.last.steps}", plan.extras(), plan.keep)

    def _stop(self) -> None:
        if self._stopped is None:
            tag = self._save()
            self._stopped = Stopped(self._whole.last.steps, tag, str(self._plan.folder))
            self.listener.leave()
            if self._whole.last.world.is_main:
                say(str(self._stopped))
        raise self._stopped

    def close(self, give_back: bool) -> None:
        """Hear no more signals."""
        self._whole.last.attach(None)
        self.listener.close(give_back or self._stopped is None)


_ACTIVE: list[Stopping] = []  # at most one


def listen(gate: Gate, numbers: tuple[Any, ...], world: World) -> Listener:
    """The listener for this world."""
    if world.size == 1:
        return Alone(gate, numbers)
    store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined] # every store has it
    return Together(gate, numbers, Ballot(store, f"restoke/stopping/{next(_NUMBER)}", world.rank, world.size), world.size)


def end() -> None:
    """Stop no more: from here on the signals mean what they meant before `resume`. Every rank calls this, or none."""
    while _ACTIVE:
        _ACTIVE.pop().close(give_back=True)


@atexit.register
def _at_exit() -> None:
    while _ACTIVE:
        _ACTIVE.pop().close(give_back=False)


def _forget() -> None:
    """A forked child has neither the thread nor a part in the agreement."""
    while _ACTIVE:
        _ACTIVE.pop().listener.forget()


if "fork" in dir(os):
    os.register_at_fork(after_in_child=_forget)
