"""Saving beside training: the state is copied before `save` returns, and a thread writes the copy."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, final

import torch.distributed as dist
from attrs import evolve, frozen
from torch import Tensor

from restoke.checkpoint.agree import together
from restoke.checkpoint.disk import DISK, Disk
from restoke.checkpoint.messages import COLLECTIVES, Collectives, StoreMessages
from restoke.checkpoint.saving import Agreed, agree_on, commit
from restoke.checkpoint.snapshot import Snapshot
from restoke.errors import CheckpointError
from restoke.parts import Captured
from restoke.said import say
from restoke.world import World

_NUMBER = itertools.count()  # of the saves of this process, alike on all ranks
_LATEST: list[threading.Thread] = []  # at most one, whoever began it: each waits for the one before


@final
@frozen(eq=False)
class Failure:
    """A save that nobody has been told of yet that it failed."""

    target: Path
    error: BaseException


_UNTOLD: list[Failure] = []


@final
class Saver:
    """Saves one after the other, each in a thread. What fails in it is raised by `wait` or `finish`, or said at exit.

    The process does not end before the thread has. The ranks agree on what is written before it starts, by collectives, and
    in it by the store of the job: training's collectives keep their order.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._target = Path()
        self._failure: Failure | None = None
        self._messages: Collectives | StoreMessages = COLLECTIVES

    def start(
        self,
        folder: Path | str,
        tag: str,
        captured: Captured,
        *,
        meta: Mapping[str, Any],
        keep: int | None = None,
        disk: Disk = DISK,
    ) -> Path:
        """Begin what `restoke.checkpoint.write` does; when this returns, the tensors may be changed. Every rank calls this.

        Raises:
            CheckpointError: on every rank the same: the save before failed, or this one is refused.
        """
        self.finish()
        agreed = agree_on(folder, tag, captured, self._world, meta=meta, keep=keep)
        spent, self._messages = self._messages, _messages(self._world)
        try:
            kept = self._copy(agreed)
            work = (evolve(agreed, own=kept), disk, spent, tuple(_LATEST))
            thread = threading.Thread(target=self._run, args=work, name="restoke-save")
            thread.start()
        except BaseException:
            self._messages.close(whole=False)
            raise
        self._thread, self._target, _LATEST[:] = thread, agreed.target, [thread]
        return agreed.target

    def join(self) -> None:
        """Return when nothing is being saved."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Return when the save is done. Raises CheckpointError, once, where it failed; what was saved before is untouched."""
        self.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            _UNTOLD.remove(failure)
            raise failure.error

    def finish(self) -> None:
        """As `wait`, with one verdict for all ranks. Every rank calls this."""
        if self._thread is not None:
            together(self._verdict, self._world, self._target)
            self._thread = None

    def _verdict(self) -> tuple[None, None]:
        self.wait()
        return None, None

    def _copy(self, agreed: Agreed) -> Callable[[], Mapping[str, Tensor]]:
        """The copies, or what hinders them: that is said where all ranks will hear it."""
        try:
            copies = self._snapshot.take(agreed.own())
        except Exception as error:  # noqa: BLE001
            return _raising(error)
        return lambda: copies

    def _run(
        self, agreed: Agreed, disk: Disk, spent: Collectives | StoreMessages, before: tuple[threading.Thread, ...]
    ) -> None:
        try:
            for thread in before:
                thread.join()
            spent.forget()  # all ranks have agreed on this save, so all have heard what was said in the one before
            commit(agreed, self._world, disk, self._messages)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            self._failure = Failure(agreed.target, error)
            _UNTOLD.append(self._failure)
        finally:
            self._messages.close()


def _raising(error: Exception) -> Callable[[], NoReturn]:
    def failed() -> NoReturn:
        raise error

    return failed


def _messages(world: World) -> Collectives | StoreMessages:
    if world.size == 1:
        return COLLECTIVES
    store: Any = dist.distributed_c10d._get_default_store()
    if store is None:
        raise CheckpointError.of("wait", False, "this process group has no store in which ranks could agree", "wait=True")
    # a clone has a connection of its own: on a shared one, training's calls would wait for ours
    return StoreMessages(store.clone(), f"restoke/save/{next(_NUMBER)}", world.rank, world.size)


@atexit.register
def _tell() -> None:
    """Threads have been joined by now."""
    for failure in _UNTOLD:
        say(f"{failure.target} was not saved: {failure.error}")


if "fork" in dir(os):
    os.register_at_fork(after_in_child=_UNTOLD.clear)
