"""Process control: who this process is, what only some processes do, and where all wait for each other."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, TypeVar

import torch

from restoke import comm
from restoke.errors import WorldError
from restoke.facades.accelerate.flag import Flag
from restoke.facades.accelerate.share import share_of
from restoke.world import World

F = TypeVar("F", bound=Callable[..., Any])


class ProcessControl(ABC):
    """What the states and the Accelerator say about ranks. Properties are not collective."""

    @property
    @abstractmethod
    def world(self) -> World:
        """This rank's view of the job."""

    @property
    def device(self) -> torch.device:
        return self.world.device

    @property
    def num_processes(self) -> int:
        return self.world.size

    @property
    def process_index(self) -> int:
        return self.world.rank

    @property
    def local_process_index(self) -> int:
        return self.world.local_rank

    @property
    def is_main_process(self) -> Flag:
        """Whether this is rank 0. It may be called, too."""
        return Flag(self.world.rank == 0)

    @property
    def is_local_main_process(self) -> Flag:
        """Whether this is the first rank of its machine. It may be called, too."""
        return Flag(self.world.local_rank == 0)

    @property
    def is_last_process(self) -> Flag:
        """Whether this is the last rank. It may be called, too."""
        return Flag(self.world.rank == self.world.size - 1)

    @property
    def use_distributed(self) -> bool:
        return self.world.size > 1

    def wait_for_everyone(self) -> None:
        """Every rank waits here for the others."""
        comm.barrier(self.world)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Rank 0 goes through the block before the others enter it. Every rank calls this."""
        with self._first(self.world.rank == 0):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """The first rank of each machine goes through the block before the others enter it. Every rank calls this."""
        with self._first(self.world.local_rank == 0):
            yield

    @contextmanager
    def _first(self, leads: bool) -> Iterator[None]:
        if not leads:
            self.wait_for_everyone()
        try:
            yield
        finally:  # also where the block raises: the others must not wait for ever
            if leads:
                self.wait_for_everyone()

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Any:
        """This rank's contiguous share of a list, tuple, tensor, dict of those, or `datasets.Dataset`, as a context manager.

        The first ranks get one more where it does not divide; with `apply_padding` the last entry is repeated until all have
        as many. What is passed does not change.

        Raises:
            DataError: it cannot be cut.
        """
        return share_of(inputs, self.world.rank, self.world.size, apply_padding)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """As `print`, once per machine."""
        if self.world.local_rank == 0:
            print(*args, **kwargs)  # noqa: T201 - what a script asks for
            (kwargs.get("file") or sys.stdout).flush()

    def on_main_process(self, function: F | None = None) -> F:
        """A decorator: rank 0 alone runs the function; elsewhere it returns None."""
        return self._only(lambda: self.world.rank == 0, function)

    def on_local_main_process(self, function: F | None = None) -> F:
        """A decorator: the first rank of each machine alone runs the function."""
        return self._only(lambda: self.world.local_rank == 0, function)

    def on_last_process(self, function: F) -> F:
        """A decorator: the last rank alone runs the function."""
        return self._only(lambda: self.world.rank == self.world.size - 1, function)

    def on_process(self, function: F | None = None, process_index: int | None = None) -> F:
        """A decorator: this rank alone runs the function.

        Raises:
            WorldError: there is no such rank.
        """
        index = self._known(process_index, "process_index", self.world.size)
        return self._only(lambda: self.world.rank == index, function)

    def on_local_process(self, function: F | None = None, local_process_index: int | None = None) -> F:
        """A decorator: this rank of each machine alone runs the function.

        Raises:
            WorldError: there is no such rank on a machine.
        """
        index = self._known(local_process_index, "local_process_index", self.world.local_size)
        return self._only(lambda: self.world.local_rank == index, function)

    def _known(self, index: int | None, axis: str, size: int) -> int:
        if index is None or not 0 <= index < size:
            raise WorldError.of(axis, index, f"there are {size} ranks", f"0 to {size - 1}")
        return index

    def _only(self, chosen: Callable[[], bool], function: F | None) -> F:
        if function is None:
            return partial(self._only, chosen)  # type: ignore[return-value]
        kept = function

        @wraps(kept)
        def alone(*args: Any, **kwargs: Any) -> Any:
            return kept(*args, **kwargs) if chosen() else None

        return alone  # type: ignore[return-value]
