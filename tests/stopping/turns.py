"""Runs threads one bytecode at a time, in an order that a seed decides: whatever can happen between them, happens in some."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, final


@final
class Turns:
    """One of the threads runs at any time. Code of the file `watched` may lose its turn before each bytecode."""

    def __init__(self, seed: int, watched: str, often: float = 0.15) -> None:
        self._dice, self._watched, self._often = random.Random(seed), watched, often
        self._mine: dict[int, threading.Semaphore] = {}
        self._alive: list[int] = []
        self._errors: list[BaseException] = []

    def run(self, works: list[Callable[[], None]]) -> None:
        """Until all are done. Raises what the first of them raised."""
        self._alive = list(range(len(works)))
        self._mine = {number: threading.Semaphore(0) for number in self._alive}
        threads = [threading.Thread(target=self._thread, args=(number, work)) for number, work in enumerate(works)]
        for thread in threads:
            thread.start()
        self._mine[self._dice.choice(self._alive)].release()
        for thread in threads:
            thread.join()
        for error in self._errors:
            raise error

    def give(self) -> None:
        """Let somebody run: another thread, or again this one."""
        own, following = int(threading.current_thread().name), self._dice.choice(self._alive)
        if following != own:
            self._mine[following].release()
            self._mine[own].acquire()

    def _thread(self, number: int, work: Callable[[], None]) -> None:
        threading.current_thread().name = str(number)
        self._mine[number].acquire()
        sys.settrace(self._enter)
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
        finally:
            sys.settrace(None)
            self._alive.remove(number)
            if self._alive:
                self._mine[self._dice.choice(self._alive)].release()

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self._watched:
            return None
        frame.f_trace_opcodes = True
        return self._at

    def _at(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and self._dice.random() < self._often:
            self.give()
        return self._at


@final
class Lock:
    """As threading's, for threads that take turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._held = turns, False

    def __enter__(self) -> Self:
        while self._held:
            self._turns.give()
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._held = False


@final
class Event:
    """As threading's, for threads that take turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._set = turns, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> None:
        while not self._set:
            self._turns.give()
