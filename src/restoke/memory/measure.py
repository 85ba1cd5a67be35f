"""Measures the memory of sessions while they train: at named moments, at the peak, and for each epoch.

Hooks of the model and of the optimizer call it, so that a session that nobody measures runs nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import attrs
from torch import Tensor, compiler, is_grad_enabled
from torch.utils._pytree import tree_leaves

from restoke.comm import gather_json
from restoke.errors import SessionError
from restoke.held import Held, Moment
from restoke.memory.census import Census, census
from restoke.memory.peaks import Allocator, allocator
from restoke.memory.records import Epoch, RankMemory
from restoke.memory.sizes import trained
from restoke.memory.storages import walk
from restoke.memory.table import table
from restoke.memory.tracker import Tracker
from restoke.session import Session

FEW = 3  # optimizer steps of an epoch that are tracked where the allocator knows the peak
UNTRACED: Any = compiler.disable  # a model that is compiled as a whole would be traced through its hooks


@contextmanager
def measure_memory(*sessions: Session, steps: int | None = None) -> Iterator[Memory]:
    """Measure these sessions' memory within it. Values stay the same to the last bit; time does not.

    Where the allocator knows its peak, the first `steps` (3) optimizer steps of each epoch are tracked for its classes;
    where it does not, all operators are, or those of the first `steps` of each epoch.

    Raises:
        SessionError: no session is given, one has no model yet, or a dispatch mode that was entered within is still entered.
    """
    if not sessions:
        raise SessionError.of("measure_memory", "no session", "there is nothing to measure", "measure_memory(session)")
    memory = Memory(steps)
    try:
        for session in sessions:
            memory.add(session)
        yield memory
    finally:
        memory.close()


@final
class Memory:
    """What was measured so far, on this rank; made by `measure_memory`."""

    def __init__(self, steps: int | None = None) -> None:
        self._steps = steps
        self._sessions: list[Session] = []
        self._handles: list[Any] = []
        self._past: list[Epoch] = []
        self._tracker: Tracker | None = None
        self._allocator: Allocator | None = None
        self._closed = False
        self._begin(0)

    def add(self, session: Session) -> None:
        """Measure this session, too. Raises SessionError: it has no model yet."""
        parts = session.parts
        if self._tracker is None:
            device = session.world.device
            self._allocator = allocator(device)
            self._tracker = Tracker(device.type)
            if self._steps is None and self._allocator is not None:
                self._steps = FEW
        self._sessions.append(session)
        self._follow()
        if len(self._sessions) == 1:
            self._begin_peak()
        before_forward = UNTRACED(partial(self._before_forward, session))
        self._handles += [
            # before the hooks of FSDP2, which gather
            parts.model.register_forward_pre_hook(before_forward, prepend=True, with_kwargs=True),
            parts.model.register_forward_hook(UNTRACED(self._after_forward), always_call=True),
            parts.optimizer.register_step_pre_hook(self._before_step),
            parts.optimizer.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Take every hook away. Raises SessionError where what was entered since is not left."""
        self._settle_peak()
        self._closed = True
        while self._handles:
            self._handles.pop().remove()
        if self._tracker is not None and self._tracker.running and not self._tracker.stop():
            why = "a dispatch mode that was entered after it is still entered"
            raise SessionError.of("measure_memory", "not left", why, "leave that mode first")

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs so far, the running one last. They are those of the session's loaders, or begin with `next_epoch`."""
        self._settle_peak()
        return (*self._past, self._epoch)

    @property
    def held(self) -> dict[str, Held]:
        """What was held at each named moment of the newest optimizer step that had it."""
        return self._epoch.held

    @property
    def peak(self) -> int:
        """The most bytes that were held at one time: the allocator's, else of tracked storages."""
        return max(epoch.peak for epoch in self.epochs)

    @property
    def at_peak(self) -> Held:
        """The classes of the highest peak that was tracked."""
        return max((epoch.at_peak for epoch in self.epochs), key=lambda held: held.total)

    @property
    def record(self) -> RankMemory:
        """All of it as a plain value."""
        world = self._sessions[0].world
        return RankMemory(
            rank=world.rank,
            size=world.size,
            device=str(world.device.type),
            source=_tracked() if self._allocator is None else "the allocator",
            epochs=self.epochs,
            sessions=tuple(map(trained, self._sessions)),
        )

    def table(self) -> str:
        """The mean over the ranks, by class, with the peak and the saving against DDP. Collective: every rank calls it."""
        return table([RankMemory.of(each) for each in gather_json(self.record.plain, self._sessions[0].world)])

    def census(self) -> Census:
        """What is held now, activations and other among it as far as they are known. Not a collective."""
        found = census(*self._sessions)
        more = {"activations": 0, "other": 0}
        if self._allocator is not None:
            more["other"] = max(0, self._allocator.now() - found.held.total)
        if self._tracker is not None and self._tracker.running:
            self._label()
            live = self._tracker.fold()
            more["activations"] = live.activations
            more["other"] = live.other if self._allocator is None else max(0, more["other"] - live.activations)
        return attrs.evolve(found, held=attrs.evolve(found.held, **more))

    def next_epoch(self) -> None:
        """Begin another epoch, where no loader of the session does."""
        self._next(self._epoch.number + 1)

    def _begin(self, number: int) -> None:
        self._epoch = Epoch(number=number, steps=0, tracked=0, peak=0, at_peak=Held(), held={}, elsewhere={})
        self._awaiting = True  # the first forward of an optimizer step

    def _next(self, number: int) -> None:
        self._settle_peak()
        self._past.append(self._epoch)
        self._begin(number)
        self._follow()
        self._begin_peak()

    def _follow(self) -> None:
        assert self._tracker is not None
        if not self._tracker.running:
            self._tracker.start()
        self._label()

    def _begin_peak(self) -> None:
        assert self._tracker is not None
        self._tracker.begin_peak()
        if self._allocator is not None:
            self._allocator.begin()

    def _label(self) -> None:
        if self._tracker is not None and self._tracker.running:
            self._tracker.label(classed for session in self._sessions for classed in walk(session.parts))

    def _settle_peak(self) -> None:
        tracker = self._tracker
        if tracker is None or self._closed:
            return
        if tracker.running:
            tracker.fold()
        highest = tracker.peak.nbytes if self._allocator is None else self._allocator.peak()
        self._epoch = attrs.evolve(self._epoch, peak=highest, at_peak=tracker.peak.held)

    def _note(self, moment: Moment) -> None:
        found = self.census()
        epoch = self._epoch
        self._epoch = attrs.evolve(
            epoch, held=epoch.held | {moment: found.held}, elsewhere=epoch.elsewhere | {moment: found.elsewhere}
        )

    def _before_forward(self, session: Session, _: Any, *inputs: Any) -> None:
        assert self._tracker is not None
        if is_grad_enabled():
            self._follow_epoch(session)
            if self._awaiting:
                self._awaiting = False
                self._note("before forward")
        if self._tracker.running:
            self._tracker.label(("other", leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
            self._tracker.fold_if_long()
        self._tracker.phase = "activations"

    def _follow_epoch(self, session: Session) -> None:
        running = session.windows.loaders
        if running and running[0].epoch != self._epoch.number:
            if self._epoch.steps:
                self._next(running[0].epoch)
            else:
                self._epoch = attrs.evolve(self._epoch, number=running[0].epoch)

    def _after_forward(self, *_: Any) -> None:
        if not is_grad_enabled():
            self._phase("other")

    def _phase(self, kind: str) -> None:
        assert self._tracker is not None
        self._tracker.phase = kind

    def _before_step(self, *_: Any) -> None:
        self._note("end of backward")
        self._phase("other")

    def _after_step(self, *_: Any) -> None:
        self._note("after the step")
        tracker, epoch = self._tracker, self._epoch
        assert tracker is not None
        self._epoch = attrs.evolve(epoch, steps=epoch.steps + 1, tracked=epoch.tracked + tracker.running)
        self._awaiting = True
        if tracker.running and self._steps is not None and self._epoch.tracked >= self._steps:
            self._settle_peak()
            tracker.stop()  # or after a later step, where a mode of the script's lies on top


def _tracked() -> str:
    """What a tracker's peaks are of."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    compiled = dynamo is not None and dynamo.counters["frames"]["ok"] > 0
    return "tracked storages, those within compiled code left out" if compiled else "tracked storages"
