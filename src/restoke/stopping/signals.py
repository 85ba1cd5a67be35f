"""Which signals ask a run to stop, and taking them: only ones that the script has left alone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from restoke.errors import SessionError, nearest

Handler = Callable[[int, FrameType | None], Any]
USUAL = ("SIGTERM", "SIGUSR1")  # what schedulers send: Kubernetes and most others; Slurm, by --signal=USR1@120
ECHO = 2.0  # seconds in which the same request may come twice, from a scheduler and by way of the launcher


def wanted(names: Iterable[str | int] | None, launched: bool) -> tuple[signal.Signals, ...]:
    """The signals of these names or numbers. Without any: the usual ones, and Ctrl-C where a launcher started this process.

    Raises:
        SessionError: there is no such signal.
    """
    if names is None:
        usual = [signal.Signals[name] for name in USUAL if name in signal.Signals.__members__]
        interrupts = launched and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return (*usual, *([signal.SIGINT] if interrupts else []))
    return tuple(_signal(name) for name in ([names] if isinstance(names, str) else names))


def _signal(name: str | int) -> signal.Signals:
    try:
        return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)
    except (KeyError, ValueError) as error:
        known = nearest(name, signal.Signals.__members__)
        raise SessionError.of("signals", name, "there is no such signal here", known) from error


def check(numbers: Iterable[signal.Signals]) -> None:
    """Raises SessionError where they cannot be taken: by this thread, by anybody, or because the script has a handler."""
    if threading.current_thread() is not threading.main_thread():
        why = "Python runs signal handlers in the main thread alone, and lets no other install them"
        raise SessionError.of("resume", threading.current_thread().name, why, "call it in the main thread, or save by save()")
    free = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
    for number in numbers:
        if number.name in ("SIGKILL", "SIGSTOP"):
            raise SessionError.of("signals", number.name, "the system lets nobody handle it", "SIGTERM, for one")
        if signal.getsignal(number) not in free:
            why = "the script handles it itself, and one alone can decide what it means"
            raise SessionError.of("signals", number.name, why, "remove that handler, or list the signals to take without it")


def take(numbers: Iterable[signal.Signals], handler: Handler) -> dict[int, Any]:
    """Install the handler; returns what was there before."""
    return {number: signal.signal(number, handler) for number in numbers}


def ignore(numbers: Iterable[int]) -> None:
    """From here on they change nothing."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def give_back(before: Mapping[int, Any]) -> None:
    """Install again what `take` replaced."""
    for number, handler in before.items():
        signal.signal(number, handler)
