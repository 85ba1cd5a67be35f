"""The first and the last thing in each rank: ties it to its parent, gives it its log, runs the script, records how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

import attrs
from attrs import field, frozen

from restoke.launch.alias import install
from restoke.launch.leave import leave
from restoke.launch.main_module import own_frames_removed, run
from restoke.launch.measured import measured
from restoke.launch.records import Record, log_of, texts
from restoke.stopped import RESUME, Stopped, on_promise

VARIABLE = "RESTOKE_WORKER"
PR_SET_PDEATHSIG = 1
INTERRUPTED = 130


@frozen(kw_only=True)
class Orders:
    """What the parent tells its ranks. Without a `folder` the process is alone, and keeps its parent's streams and no record.

    `screen` are two files, for the main rank's output and its errors, that the parent shows and logs.
    """

    parent: int | None = None
    folder: str = ""
    screen: tuple[str, ...] = field(default=(), converter=texts)
    facade: str | None = None
    memory: bool = False

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(attrs.asdict(self))}

    @classmethod
    def taken(cls, environ: MutableMapping[str, str]) -> Orders:
        """Read once and removed: they are not for what the script starts itself."""
        return cls(**json.loads(environ.pop(VARIABLE, "{}")))


def command(words: Sequence[str], *flags: str) -> list[str]:
    """The command line of a rank. -P: what lies in the directory where it is started must not stand in for a module of ours."""
    return [sys.executable, "-P", *flags, "-m", "restoke.launch.worker", *words]


def main(words: Sequence[str]) -> NoReturn:
    orders = Orders.taken(os.environ)
    rank = int(os.environ.get("RANK", "0"))
    folder = Path(orders.folder) if orders.folder else None
    if orders.parent is not None:
        _die_with(orders.parent)
    if folder is not None:
        _redirect(orders.screen if rank == 0 else (), log_of(folder, rank))
        Record(rank=rank).write(folder)
        on_promise(lambda: Record(rank=rank, saves=True).write(folder))
    faulthandler.enable()
    with measured(folder, rank) if orders.memory else contextlib.nullcontext():
        record = _outcome(words, rank, orders.facade, log_of(folder, rank) if folder else None)
    if folder is not None:
        with contextlib.suppress(OSError):  # a full disk must not change how the script ended
            record.write(folder)
    leave(record.code)


def _die_with(parent: int) -> None:
    """The kernel kills this process when its parent dies, however that happens. Linux only; elsewhere nothing is done."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def _redirect(screen: Sequence[str], log: Path) -> None:
    for number, path in zip((1, 2), screen or (str(log), str(log)), strict=True):
        _send(number, path)


def _send(number: int, path: str | Path) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o644)
    os.dup2(opened, number)
    os.close(opened)


def _outcome(words: Sequence[str], rank: int, facade: str | None, log: Path | None) -> Record:
    try:
        if facade is not None:
            install(facade)
        run(words)
    except Stopped as stopped:
        return Record(rank=rank, phase="stopped", code=RESUME, error=str(stopped))
    except SystemExit as error:
        at, code = time.monotonic_ns(), _exit_code(error.code)
        if code == 0:
            return Record(rank=rank, phase="finished", monotonic_ns=at)
        said = f"sys.exit({error.code!r})"
        return Record(rank=rank, phase="failed", code=code, error=said, chain=(said,), monotonic_ns=at)
    except BaseException as error:  # noqa: BLE001
        # whatever it is, the other ranks wait for this one
        return _failed(error, rank, time.monotonic_ns(), log)
    return Record(rank=rank, phase="finished")


def _exit_code(code: object) -> int:
    """As Python turns what `sys.exit` got into a number: text is printed, and means 1."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _failed(error: BaseException, rank: int, at: int, log: Path | None) -> Record:
    error.__traceback__ = own_frames_removed(error.__traceback__)
    text = "".join(traceback.format_exception(error))
    _show(error, log)
    chain = tuple(_said(each) for each in _causes(error))
    code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return Record(rank=rank, phase="failed", code=code, error=chain[0], chain=chain, traceback=text, monotonic_ns=at)


def _show(error: BaseException, log: Path | None) -> None:
    """As Python shows what nobody caught; into the log only, because on the screen the parent's summary comes first."""
    try:
        if log is not None:
            _send(2, log)
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:  # noqa: BLE001
        # a hook of the script's own, or a full disk: neither may hide the error itself
        traceback.print_exc()


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return found


def _said(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    said = _first_line(str(error))
    return f"{name}: {said}" if said else name


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


if __name__ == "__main__":
    main(sys.argv[1:])
