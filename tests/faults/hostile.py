"""Loads what an attacker made, in a fork with little memory, and tells all that happened meanwhile."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
import xxhash
from attrs import frozen

from restoke import checkpoint
from restoke.checkpoint.manifest import HEAD, NAME, TAIL
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk
from tests.faults.forks import alone, in_forks
from tests.faults.saves import OLD, save_alone

FILE = "rank-00000-of-00001.safetensors"
ROOM = 256 << 20  # bytes that loading may take
CODE = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "ctypes.dlopen")
Spoil = Callable[[Path], Any]  # given the folder of the checkpoint `bad`


@final
@frozen
class Report:
    """What loading `bad` was refused with ("" if it was not), and what loading the newest good one gave."""

    kind: str
    message: str
    parts: tuple[str, ...]  # axis, got, why, instead
    marks: Any
    notes: list[str]
    events: list[str]  # that code was found or run
    seconds: float
    grown: int  # bytes
    went_off: bool


class Bomb:
    """What it unpickles to is a file that says so."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def pickled(path: Path) -> bytes:
    return pickle.dumps(Bomb(path.parent / "went off"))


def zipped(path: Path) -> bytes:
    torch.save(Bomb(path.parent / "went off"), path / "x")
    data = (path / "x").read_bytes()
    (path / "x").unlink()
    return data


def body_of(path: Path) -> bytes:
    data = (path / NAME).read_bytes()
    head = HEAD.match(data)
    assert head
    return data[head.end() : -len(TAIL)]


def seal(path: Path, body: bytes) -> None:
    """With a right checksum, as an attacker would."""
    digest = xxhash.xxh3_128_hexdigest(body).encode()
    (path / NAME).write_bytes(b'{"checksum": "xxh3_128:%s",\n"manifest": %s%s' % (digest, body, TAIL))


def replacing(old: bytes, new: bytes) -> Spoil:
    """In the text of the manifest."""

    def spoil(path: Path) -> None:
        body = body_of(path)
        assert old in body
        seal(path, body.replace(old, new, 1))

    return spoil


def changing(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """In the manifest as an object."""

    def spoil(path: Path) -> None:
        body = json.loads(body_of(path))
        change(body)
        seal(path, json.dumps(body).encode())

    return spoil


def filing(data: Callable[[Path], bytes] | bytes, **manifest: Any) -> Spoil:
    """Another tensor file, whose checksum is right."""

    def spoil(path: Path) -> None:
        content = data if isinstance(data, bytes) else data(path)
        (path / FILE).write_bytes(content)
        described = {"name": FILE, "bytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
        nothing = {"tensors": {}, "meta": {}, "values": {}, "rank_values": [{}]}
        changing(lambda body: body.update(nothing, files=[described], **manifest))(path)

    return spoil


def prepare(folder: Path) -> None:
    """`good`, and `bad` that is newer and as good, yet."""
    save_alone(folder, "good", OLD)
    chunks = {"model/w": Chunk.whole(torch.zeros(4, 2)), "model/b": Chunk.whole(torch.zeros(4))}
    values = {"large": torch.zeros(1 << 18), "mark": 0.0, "rank/rng": {"state": 0.0}}
    checkpoint.write(folder, "bad", Captured(chunks, values), alone(), meta={"mark": 0.0})


def reports(folder: Path, cases: Sequence[Spoil]) -> list[Report]:
    """Of each case, in a fork of its own."""
    base = folder / "base"
    ends = in_forks([partial(prepare, base)])
    assert ends[0].code == 0, ends[0].error
    found = []
    for first in range(0, len(cases), 4):
        paths = [folder / str(i) for i in range(first, min(first + 4, len(cases)))]
        for path in paths:
            shutil.copytree(base, path)
        ends = in_forks([partial(_report, path, cases[int(path.name)]) for path in paths], patience=30)
        assert all(end.code == 0 for end in ends), [
            (path.name, end.error or end) for path, end in zip(paths, ends, strict=True)
        ]
        found += [end.value for end in ends]
    return found


def _report(folder: Path, spoil: Spoil) -> Report:
    spoil(folder / "bad")
    events: list[str] = []
    sys.addaudithook(lambda event, args: events.append(event) if event in CODE else None)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, used + ROOM))
    before, start = _peak(), time.monotonic()
    kind, message, parts = _refusal(folder)
    seconds, grown = time.monotonic() - start, _peak() - before
    marks, notes = _fallback(folder)
    return Report(kind, message, parts, marks, notes, events, seconds, grown, (folder / "went off").exists())


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _refusal(folder: Path) -> tuple[str, str, tuple[str, ...]]:
    try:
        saved = checkpoint.read(folder, "bad", alone())
        list(saved.rank_values)
        for key in saved.keys():  # noqa: SIM118
            saved.read(key)
    except CheckpointError as error:
        problem = error.problems[0]
        return "CheckpointError", str(error), (problem.axis, str(problem.got), problem.why, problem.instead)
    except BaseException as error:
        return type(error).__name__, str(error), ()
    return "", "", ()


def _fallback(folder: Path) -> tuple[Any, list[str]]:
    try:
        saved = checkpoint.read(folder, None, alone())
        return saved.meta["mark"], saved.notes
    except BaseException as error:
        return f"{type(error).__name__}: {error}", []
