"""The interposed file layer: every change that this process makes below a folder is announced first, whoever makes it.

It stands in for the functions of `os` and for `open`, so what is tested need not know of it. What bypasses Python (a writer in
C++ or Rust) is not seen; `drives.Drive.replay` of a recorded run, compared with the folder, proves that nothing did.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from attrs import define, evolve, frozen

UNKNOWN = ("sendfile", "copy_file_range", "splice", "link", "symlink")
REAL = {name: vars(os)[name] for name in ("open", "write", "pwrite", "fsync", "fdatasync", "lseek", "readlink")}
open_really = io.open


@final
@frozen
class Operation:
    """One change, its paths relative to the folder. Kinds: make, create, write, truncate, sync, rename, remove.

    A write of several bytes is two operations, its halves: between them half of a piece is on the disk.
    """

    kind: str
    path: str
    target: str = ""  # of a rename
    offset: int = 0  # of a write; of a truncate, the new length
    data: bytes = b""
    at: int = 0  # monotonic nanoseconds, comparable between the processes of a machine

    def __str__(self) -> str:
        return f"{self.kind} {self.path}" + (f" -> {self.target}" if self.target else "")


Before = Callable[[Operation], None]


def nothing(operation: Operation) -> None:
    pass


@contextlib.contextmanager
def interposed(root: Path, before: Before = nothing) -> Iterator[list[Operation]]:
    """Within, `before` hears of each operation below `root`: it may raise OSError, or end the process. Yields what was done."""
    layer = _Layer(os.path.realpath(root), before, [], threading.RLock())
    stand_ins = layer.stand_ins()
    kept = {name: vars(os)[name] for name in stand_ins}
    vars(os).update(stand_ins)
    io.open = builtins.open = layer.open_file  # type: ignore[assignment]
    try:
        yield layer.done
    finally:
        vars(os).update(kept)
        io.open = builtins.open = open_really


@final
@define
class _Layer:
    root: str
    before: Before
    done: list[Operation]
    lock: Any

    def stand_ins(self) -> dict[str, Callable[..., Any]]:
        plain = {"mkdir": "make", "unlink": "remove", "remove": "remove", "rmdir": "remove"}
        made: dict[str, Callable[..., Any]] = {name: self._on_a_name(vars(os)[name], kind) for name, kind in plain.items()}
        made |= {name: self._renaming(vars(os)[name]) for name in ("rename", "replace")}
        made |= {name: self._syncing(vars(os)[name]) for name in ("fsync", "fdatasync")}
        made |= {name: self._truncating(vars(os)[name]) for name in ("truncate", "ftruncate")}
        made |= {name: self._refusing(vars(os)[name], name) for name in UNKNOWN if name in vars(os)}
        made |= {"writev": lambda file, parts: self.write(file, b"".join(parts))}
        made |= {"pwritev": lambda file, parts, offset: self.pwrite(file, b"".join(parts), offset)}
        return made | {"open": self.open, "write": self.write, "pwrite": self.pwrite, "posix_fallocate": self.allocate}

    def inside(self, path: Any, folder: int | None = None) -> str | None:
        """The path (or the open file's) relative to the root, if it is below it."""
        if isinstance(path, int):
            whole = REAL["readlink"](f"/proc/self/fd/{path}")
        else:
            above = REAL["readlink"](f"/proc/self/fd/{folder}") if folder is not None else os.getcwd()
            head, tail = os.path.split(os.path.join(above, os.fsdecode(path)))
            whole = os.path.join(os.path.realpath(head), tail)
        if whole == self.root:
            return "."
        return whole[len(self.root) + 1 :] if whole.startswith(self.root + os.sep) else None

    def perform(self, operation: Operation, act: Callable[[], Any]) -> Any:
        with self.lock:
            self.before(operation)
            result = act()
            self.done.append(evolve(operation, at=time.monotonic_ns()))
        return result

    def _on_a_name(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def stand_in(path: Any, *args: Any, dir_fd: int | None = None) -> Any:
            name = self.inside(path, dir_fd)
            if name is None:
                return real(path, *args, dir_fd=dir_fd)
            return self.perform(Operation(kind, name), lambda: real(path, *args, dir_fd=dir_fd))

        return stand_in

    def _renaming(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(source: Any, target: Any) -> Any:
            old, new = self.inside(source), self.inside(target)
            if old is None and new is None:
                return real(source, target)
            assert None not in (old, new), f"{source} -> {target}: in or out of the folder is not modelled"
            return self.perform(Operation("rename", str(old), str(new)), lambda: real(source, target))

        return stand_in

    def _syncing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(file: Any) -> Any:
            name = self.inside(file if isinstance(file, int) else file.fileno())
            return real(file) if name is None else self.perform(Operation("sync", name), lambda: real(file))

        return stand_in

    def _truncating(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(file: Any, length: int) -> Any:
            name = self.inside(file)
            if name is None:
                return real(file, length)
            return self.perform(Operation("truncate", name, offset=length), lambda: real(file, length))

        return stand_in

    def _refusing(self, real: Callable[..., Any], called: str) -> Callable[..., Any]:
        def stand_in(*args: Any, **options: Any) -> Any:
            touched = [arg for arg in args if isinstance(arg, int | str | os.PathLike) and _is_file(arg)]
            assert not any(map(self.inside, touched)), f"os.{called} is not modelled"
            return real(*args, **options)

        return stand_in

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self.inside(path, dir_fd)

        def act() -> int:
            return int(REAL["open"](path, flags, mode, dir_fd=dir_fd))

        if name is None or not flags & (os.O_CREAT | os.O_TRUNC):
            return act()
        there = os.path.lexists(os.path.join(self.root, name))
        if there and flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        if there and not flags & os.O_TRUNC:
            return act()
        return int(self.perform(Operation("truncate" if there else "create", name), act))

    def write(self, file: int, data: Any) -> int:
        name = self.inside(file)
        if name is None:
            return int(REAL["write"](file, data))
        offset = os.fstat(file).st_size if _appends(file) else REAL["lseek"](file, 0, os.SEEK_CUR)
        return self._halves(name, data, offset, lambda half, _: REAL["write"](file, half))

    def pwrite(self, file: int, data: Any, offset: int) -> int:
        name = self.inside(file)
        if name is None:
            return int(REAL["pwrite"](file, data, offset))
        start = os.fstat(file).st_size if _appends(file) else offset  # as Linux does it
        return self._halves(name, data, start, lambda half, at: REAL["pwrite"](file, half, at))

    def allocate(self, file: int, offset: int, length: int) -> None:
        size = max(os.fstat(file).st_size, offset + length)
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)

    def _halves(self, name: str, data: Any, offset: int, act: Callable[[memoryview, int], int]) -> int:
        """Both halves; as a real disk would, it says how much was written where the second one is refused."""
        whole, written = memoryview(data).cast("B"), 0
        cut = len(whole) // 2
        for half in (whole[:cut], whole[cut:]) if cut else (whole,):
            at = offset + written
            operation = Operation("write", name, offset=at, data=bytes(half))
            try:
                done = self.perform(operation, lambda half=half, at=at: act(half, at))
            except OSError:
                if written:
                    return written
                raise
            assert done == len(half), "a short write is not modelled"
            written += done
        return written

    def open_file(self, file: Any, mode: str = "r", buffering: int = -1, *text: Any, **options: Any) -> Any:
        """`open`: what writes below the root gets a raw file that tells of its writes."""
        if not set(mode) & set("wax+") or self.inside(file) is None:
            return open_really(file, mode, buffering, *text, **options)
        raw = _Raw(
            file, mode.replace("b", "").replace("t", ""), self, options.pop("closefd", True), options.pop("opener", None)
        )
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **options, line_buffering=buffering == 1)


class _Raw(io.FileIO):
    def __init__(self, file: Any, mode: str, layer: _Layer, closefd: bool, opener: Any) -> None:
        self._layer = layer
        super().__init__(file, mode, closefd, opener or (lambda path, flags: layer.open(path, flags, 0o666)))

    def write(self, data: Any) -> int:
        return self._layer.write(self.fileno(), data)

    def truncate(self, size: int | None = None) -> int:
        length = self.tell() if size is None else size
        os.ftruncate(self.fileno(), length)
        return length


def _appends(file: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND)


def _is_file(arg: Any) -> bool:
    return not isinstance(arg, int) or os.path.exists(f"/proc/self/fd/{arg}")
