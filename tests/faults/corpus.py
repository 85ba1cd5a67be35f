"""Hostile checkpoints: what an attacker, or a broken disk with luck, puts in the place of files, names, sizes and values."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from restoke.checkpoint.manifest import NAME
from tests.faults.hostile import FILE, Spoil, body_of, changing, filing, pickled, replacing, seal, zipped

DEEP = 100_000


def put(name: str, data: Any) -> Spoil:
    return lambda path: (path / name).write_bytes(data(path) if callable(data) else data)


def instead(name: str, make: Any) -> Spoil:
    """Something else under the file's name; what was there is beside the checkpoint."""

    def spoil(path: Path) -> None:
        shutil.move(path / name, path.parent / "elsewhere")
        make(path / name)

    return spoil


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


FILES: dict[str, Spoil] = {
    f"{what} in place of {name}": spoil
    for name in (NAME, FILE)
    for what, spoil in {
        "a pickle": put(name, pickled),
        "a file of torch.save": put(name, zipped),
        "nothing": put(name, b""),
        "a link to it": instead(name, lambda path: path.symlink_to(path.parent.parent / "elsewhere")),
        "a link to nowhere": instead(name, lambda path: path.symlink_to("nowhere")),
        "a link to zeros without end": instead(name, lambda path: path.symlink_to("/dev/zero")),
        "a pipe": instead(name, os.mkfifo),
        "a folder": instead(name, os.mkdir),
        "a terabyte of zeros": instead(name, sparse),
    }.items()
}


def tensor(**change: Any) -> Spoil:
    """The manifest says something else of `model/b`, 4 numbers in one chunk."""
    return changing(lambda body: body["tensors"]["model/b"].update(change))


def file(**change: Any) -> Spoil:
    return changing(lambda body: body["files"][0].update(change))


def field(**change: Any) -> Spoil:
    return changing(lambda body: body.update(change))


MANIFESTS: dict[str, Spoil] = {
    "a field twice": replacing(b'"meta": ', b'"meta": {}, "meta": '),
    "a tensor twice": replacing(b'"model/b": ', b'"model/b": {}, "model/b": '),
    "deep lists": replacing(b'"meta": ', b'"meta": ' + b"[" * DEEP + b"]" * DEEP + b', "x": '),
    "deep objects": replacing(b'"meta": ', b'"meta": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b', "x": '),
    "deep values": replacing(b'"values": {', b'"values": {"x": ' + b"[" * 900 + b"]" * 900 + b", "),
    "not a number": replacing(b'"meta": {"mark": 0.0}', b'"meta": {"mark": NaN}'),
    "infinity": replacing(b'"meta": {"mark": 0.0}', b'"meta": {"mark": -Infinity}'),
    "a number of a million digits": replacing(b'"meta": {"mark": 0.0}', b'"meta": {"mark": ' + b"9" * 1_000_000 + b"}"),
    "a generation without end": replacing(b'"generation": 2', b'"generation": ' + b"9" * 30),
    "a negative generation": replacing(b'"generation": 2', b'"generation": -1'),
    "broken UTF-8": replacing(b'"meta": {"mark"', b'"meta": {"\xff\xfe"'),
    "UTF-16": lambda path: seal(path, body_of(path).decode().encode("utf-16")),
    "half a surrogate as a name": replacing(b'"model/b"', b'"model/\\ud800"'),
    "a zero in a name": replacing(b'"model/b"', b'"model/b\\u0000"'),
    "a list": lambda path: seal(path, json.dumps([json.loads(body_of(path))]).encode()),
    "no text": lambda path: seal(path, b""),
    "another version": field(version=2),
    "a version that is true": field(version=True),
    "an unknown checksum": field(algorithm="md5"),
    "a checksum's name that is a list": field(algorithm=["xxh3_128"]),
    "no time": field(created="yesterday"),
    "a time without a zone": field(created="2020-01-01T00:00:00"),
    "no files": field(files=[], rank_values=[]),
    "files that are a text": field(files="x"),
    "a hundred thousand files": field(files=[{}] * 100_000),
    "values of more ranks": field(rank_values=[{}, {}]),
    "a name that leads out": file(name="../good/" + FILE),
    "an absolute name": file(name="/etc/passwd"),
    "a name with a zero": file(name=FILE + "\0"),
    "bytes of 2^63": file(bytes=2**63),
    "negative bytes": file(bytes=-1),
    "bytes that are a text": file(bytes="9"),
    "a checksum that is a number": file(checksum=1),
    "a shape of 2^63": tensor(shape=[2**63], chunks=[[0, [0], [2**63]]]),
    "a shape of 2^59": tensor(shape=[2**57], chunks=[[0, [0], [2**57]]]),
    "a shape whose product is 2^64": tensor(shape=[2**32, 2**32], chunks=[[0, [0, 0], [2**32, 2**32]]]),
    "a negative shape": tensor(shape=[-4], chunks=[[0, [0], [-4]]]),
    "two negative sizes": tensor(shape=[-2, -2], chunks=[[0, [0, 0], [-2, -2]]]),
    "a size that is true": tensor(shape=[True]),
    "a size with a point": tensor(shape=[4.0]),
    "a size that is a text": tensor(shape=["4"]),
    "a shape that is a number": tensor(shape=4),
    "a thousand dimensions": tensor(shape=[1] * 1000),
    "another shape than the file's": tensor(shape=[2, 2], chunks=[[0, [0, 0], [2, 2]]]),
    "another dtype than the file's": tensor(dtype="int32"),
    "a dtype of objects": tensor(dtype="object"),
    "a dtype that is a list": tensor(dtype=["float32"]),
    "chunks that overlap": tensor(chunks=[[0, [0], [3]], [0, [2], [2]]]),
    "a chunk twice": tensor(chunks=[[0, [0], [4]], [0, [0], [4]]]),
    "chunks with a gap": tensor(chunks=[[0, [0], [1]], [0, [2], [2]]]),
    "a chunk before the beginning": tensor(chunks=[[0, [-1], [4]]]),
    "a chunk beyond the end": tensor(chunks=[[0, [1], [4]]]),
    "a chunk of no rank": tensor(chunks=[[9, [0], [4]]]),
    "a chunk of rank -1": tensor(chunks=[[-1, [0], [4]]]),
    "a hundred thousand chunks": tensor(chunks=[[0, [0], [4]]] * 100_000),
    "a tensor less": changing(lambda body: body["tensors"].pop("model/b")),
    "a tensor under another name": changing(lambda body: body["tensors"].update(other=body["tensors"].pop("model/b"))),
}

SPOILT_VALUES: dict[str, Any] = {
    "no names": [1],
    "a tensor that is not there": {"x": {"$tensor": "none"}},
    "a tensor whose key is a list": {"x": {"$tensor": ["model/b"]}},
    "a tensor a thousand times": {"x": [{"$tensor": "values/0"}] * 1000},
    "an array a thousand times": {"x": [{"$array": ["values/0", "<f4", [1 << 18]]}] * 1000},
    "an array of 2^60": {"x": {"$array": ["model/b", "<f4", [2**60]]}},
    "an array of negative shape": {"x": {"$array": ["model/b", "<f4", [-4]]}},
    "an array of objects": {"x": {"$array": ["model/b", "|O8", [2]]}},
    "an array of wide texts": {"x": {"$array": ["model/b", "<U999999999999999999", [0]]}},
    "a number of objects": {"x": {"$number": ["|O8", "AAAAAAAAAAA="]}},
    "an unknown kind": {"x": {"$load": "x"}},
    "an evaluated kind": {"x": {"$__import__('os').system('true')": "x"}},
    "two kinds": {"x": {"$int": "1", "$float": "1"}},
    "a dtype that is a function": {"x": {"$dtype": "load"}},
    "a path of an unknown class": {"x": {"$path": ["Popen", "true"]}},
    "a device of none": {"x": {"$device": "evil:1"}},
    "a whole number of no digits": {"x": {"$int": "zz"}},
    "a float of few bytes": {"x": {"$float": "00"}},
    "bytes in no base": {"x": {"$bytes": "%"}},
    "a list in a set": {"x": {"$set": [[1]]}},
    "a set of a text": {"x": {"$set": "abc"}},
    "pairs of three": {"x": {"$dict": [[1, 2, 3]]}},
    "a deque of 2^99": {"x": {"$deque": [2**99, []]}},
    "an age of days": {"x": {"$timedelta": [10**12, 0, 0]}},
    "the month 13": {"x": {"$datetime": [2020, 13, 1, 0, 0, 0, 0, None, 0]}},
    "a tuple of values": {"$tuple": []},
}
VALUES: dict[str, Spoil] = {f"values: {name}": field(values=value) for name, value in SPOILT_VALUES.items()}
META: dict[str, Spoil] = {f"meta: {name}": field(meta=SPOILT_VALUES[name]) for name in ("no names", "an unknown kind")}
LATE: dict[str, Spoil] = {f"of a rank: {name}": field(rank_values=[value]) for name, value in SPOILT_VALUES.items()}


def header(entries: Any, data: bytes = bytes(32)) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def said(*names: str) -> dict[str, Any]:
    """What the manifest says of these tensors of 4 numbers."""
    return {name: {"shape": [4], "dtype": "float32", "chunks": [[0, [0], [4]]]} for name in names}


def at(start: int, end: int, shape: Any = (4,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TWO = said("a", "b")
TENSORS: dict[str, Spoil] = {
    "less than a length": filing(b"\0" * 7),
    "a header of 2^40": filing((2**40).to_bytes(8, "little") + b"{}"),
    "a header of 2^63": filing((2**63).to_bytes(8, "little") + b"{}"),
    "a header longer than the file": filing((99).to_bytes(8, "little") + b"{}"),
    "a header that is no JSON": filing(header(b"{'a': 1}")),
    "a header in broken UTF-8": filing(header(b'{"\xff": 1}')),
    "a header that is a list": filing(header([])),
    "a deep header": filing(header(b'{"a":' * DEEP + b"1" + b"}" * DEEP)),
    "a pickle whose checksum is right": filing(pickled),
    "a file of torch.save whose checksum is right": filing(zipped),
    "offsets that overlap": filing(header({"a": at(0, 16), "b": at(8, 24)}), tensors=TWO),
    "the same offsets twice": filing(header({"a": at(0, 16), "b": at(0, 16)}), tensors=TWO),
    "offsets with a gap": filing(header({"a": at(0, 16), "b": at(24, 40)}, bytes(40)), tensors=TWO),
    "offsets beyond the end": filing(header({"a": at(0, 16), "b": at(16, 32)}, bytes(20)), tensors=TWO),
    "offsets from the end": filing(header({"a": at(16, 0), "b": at(16, 32)}), tensors=TWO),
    "negative offsets": filing(header({"a": at(-16, 0), "b": at(0, 16)}), tensors=TWO),
    "offsets of 2^63": filing(header({"a": at(0, 2**63 - 1, (2**61,))}), tensors=said("a")),
    "a shape of 2^62 in the header": filing(header({"a": at(0, 32, (2**62,))}), tensors=said("a")),
    "a negative shape in the header": filing(header({"a": at(0, 16, (-4,))}), tensors=said("a")),
    "fewer bytes than its shape": filing(header({"a": at(0, 8), "b": at(8, 32)}), tensors=TWO),
    "an unknown dtype": filing(header({"a": at(0, 16, dtype="PICKLE"), "b": at(16, 32)}), tensors=TWO),
    "a tensor more than the manifest": filing(header({"a": at(0, 16), "b": at(16, 32)}), tensors=said("a")),
    "a header with a name twice": filing(
        header(b'{"a":%s,"a":%s}' % (json.dumps(at(0, 16)).encode(), json.dumps(at(16, 32)).encode())), tensors=said("a")
    ),
    "nested metadata": filing(header({"__metadata__": {"x": {"y": 1}}, "a": at(0, 32, (8,))}), tensors=said("a")),
}
EARLY: dict[str, Spoil] = FILES | MANIFESTS | VALUES | META | TENSORS
