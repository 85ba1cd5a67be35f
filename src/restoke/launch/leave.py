"""The end of a rank: everything that Python does at exit, in its order, except what can hang or abort under gloo."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

LAST_WORDS = 30  # seconds that a failed rank has for its exit handlers and threads, while the others wait


def leave(code: int) -> NoReturn:
    """Exit with this code. Threads are joined, exit handlers run and files flushed; no object is torn down."""
    if code != 0:
        faulthandler.dump_traceback_later(LAST_WORDS, exit=True)  # a thread without the interpreter's lock: it cannot be stuck
    ends: tuple[Callable[[], Any], ...] = (threading._shutdown, atexit._run_exitfuncs, _flush_open_files)  # type: ignore[attr-defined]
    for end in ends:
        try:
            end()
        except BaseException:  # noqa: BLE001
            # as at Python's own exit: what one handler raises is shown, and the others still run
            traceback.print_exc()
    os._exit(code)


def _flush_open_files() -> None:
    """Python writes out what was never closed when it destroys the file; here nothing is destroyed."""
    for item in [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]:
        with contextlib.suppress(OSError, ValueError):
            item.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
