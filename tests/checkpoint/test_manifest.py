"""A manifest is believed only where every part of it is exactly right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from restoke.checkpoint.formats import FileEntry
from restoke.checkpoint.manifest import (
    HEAD,
    LIMIT,
    NAME,
    TAIL,
    Manifest,
    Piece,
    TensorEntry,
    dump,
    file_name,
    generation_of,
    parse,
    read_body,
)
from restoke.checkpoint.tiling import Box

GOOD = Manifest(
    generation=7,
    created="2024-05-01T10:00:00+00:00",
    files=(FileEntry(500, "ab"), FileEntry(600, "cd")),
    tensors={
        "model/w": TensorEntry((4, 3), "float32", (Piece(0, Box((0, 0), (2, 3))), Piece(1, Box((2, 0), (2, 3))))),
        "model/s": TensorEntry((), "int64", (Piece(1, Box((), ())),)),
    },
    meta={"steps": 3},
    values={"extras": {}},
    rank_values=({}, {"rng": 1}),
)


def body_of(data: bytes) -> bytes:
    head = HEAD.match(data)
    assert head
    return data[head.end() : -len(TAIL)]


def plain() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(body_of(dump(GOOD)))
    return data


def test_what_is_dumped_is_parsed_again(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(dump(GOOD))
    body = read_body(tmp_path)
    assert parse(body) == GOOD
    assert generation_of(body) == 7
    assert (GOOD.world_size, GOOD.bytes) == (2, 1100)
    assert list(GOOD.keys_of(1)) == ["model/w", "model/s"]


def test_the_whole_file_is_json_for_other_tools() -> None:
    assert json.loads(dump(GOOD))["manifest"] == plain()


def test_its_checksum_is_that_of_its_body() -> None:
    data = dump(GOOD)
    assert json.loads(data)["checksum"] == "xxh3_128:" + xxhash.xxh3_128_hexdigest(body_of(data))


def entry(**changed: Any) -> dict[str, Any]:
    return {"shape": [4, 3], "dtype": "float32", "chunks": [[0, [0, 0], [4, 3]]], **changed}


def tensor(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data["tensors"].update({"model/w": entry(**changed)})


def field(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data.update({name: value})


def file(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data["files"][0].update(changed)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (field("format", "other"), "not one of restoke"),
    "a later version": (field("version", 2), "format version 2, and this restoke reads version 1"),
    "version true": (field("version", True), "format version True"),
    "no generation": (field("generation", -1), "generation"),
    "a bool for a number": (field("generation", True), "generation"),
    "no time": (field("created", "yesterday"), "isoformat"),
    "a time without offset": (field("created", "2024-05-01"), "offset"),
    "an unknown algorithm": (field("algorithm", "md5"), "'md5' is not known"),
    "a field too many": (field("code", "import os"), "code"),
    "a field too few": (lambda data: data.pop("values"), "values"),
    "files no list": (field("files", {}), "not listed"),
    "no files": (lambda data: data.update(files=[], tensors={}, rank_values=[]), "one per rank"),
    "a parent folder": (file(name="../rank-00000-of-00002.safetensors"), "not named"),
    "an absolute path": (file(name="/etc/passwd"), "not named"),
    "another rank's file": (file(name=file_name(1, 2)), "not named"),
    "a pickle": (file(name="weights.pt"), "not named"),
    "a negative file": (file(bytes=-1), "no number"),
    "a file of a float": (file(bytes=500.0), "no number"),
    "a checksum that is a number": (file(checksum=3), "no number or text"),
    "a file that says more": (file(url="http://"), "not described"),
    "ranks without values": (field("rank_values", [{}]), "one per rank"),
    "a tensor that is a list": (lambda data: data["tensors"].update(x=[]), "not described"),
    "an unknown dtype": (tensor(dtype="object"), "dtype"),
    "a dtype that is a list": (tensor(dtype=["float32"]), "dtype"),
    "a huge dimension": (tensor(shape=[2**63, 3], chunks=[[0, [0, 0], [2**63, 3]]]), "no list of sizes"),
    "a huge product": (tensor(shape=[2**40, 2**40], chunks=[[0, [0, 0], [2**40, 2**40]]]), "larger than anything"),
    "a huge empty tensor": (
        tensor(shape=[0, 2**59, 2**59], chunks=[[0, [0, 0, 0], [0, 2**59, 2**59]]]),
        "larger than anything",
    ),
    "more elements than bytes": (tensor(shape=[500, 3], chunks=[[0, [0, 0], [500, 3]]]), "smaller than its chunks"),
    "a negative dimension": (tensor(shape=[-4, -3]), "no list of sizes"),
    "a dimension of a float": (tensor(shape=[4.0, 3]), "no list of sizes"),
    "seventy dimensions": (tensor(shape=[1] * 70), "no list of sizes"),
    "a gap": (tensor(chunks=[[0, [0, 0], [2, 3]]]), "6 of 12"),
    "an overlap": (tensor(chunks=[[0, [0, 0], [2, 3]], [1, [1, 0], [2, 3]]]), "overlap"),
    "a chunk outside": (tensor(chunks=[[0, [1, 0], [4, 3]]]), "not inside"),
    "a chunk of another rank": (tensor(chunks=[[0, [0], [12]]]), "not inside"),
    "a chunk in no file": (tensor(chunks=[[2, [0, 0], [4, 3]]]), "in no file"),
    "a chunk in file -1": (tensor(chunks=[[-1, [0, 0], [4, 3]]]), "in no file"),
    "two chunks in one file": (tensor(chunks=[[0, [0, 0], [2, 3]], [0, [2, 0], [2, 3]]]), "twice in one file"),
    "a chunk too long": (tensor(chunks=[[0, [0, 0], [4, 3], "x"]]), "in no file"),
    "chunks no list": (tensor(chunks={}), "not listed"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused(case: str) -> None:
    change, why = HOSTILE[case]
    data = plain()
    change(data)
    with pytest.raises(ValueError, match=re.escape(why)):
        parse(json.dumps(data).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"format": "restoke", "format": "restoke"}',
        json.dumps(plain()).replace('"model/s"', '"model/w"').encode(),
        json.dumps(plain()).replace('"generation": 7', '"generation": NaN').encode(),
        json.dumps(plain()).replace('"generation": 7', f'"generation": {"7" * 5000}').encode(),
        json.dumps(dict(reversed(plain().items()))).encode(),
    ],
    ids=range(10),
)
def test_what_is_no_manifest_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(body)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "begin or end"),
        (dump(GOOD)[:-1], "begin or end"),
        (dump(GOOD)[: len(dump(GOOD)) // 2], "begin or end"),
        (dump(GOOD) + b" ", "begin or end"),
        (dump(GOOD).replace(b"xxh3_128:", b"none0000:", 1), "begin or end"),
        (dump(GOOD).replace(b'"steps": 3', b'"steps": 4'), "checksum"),
        (dump(GOOD).replace(b"[4, 3]", b"[4,3 ]"), "checksum"),
        (json.dumps(plain()).encode(), "begin or end"),
        (b"\x80\x04}q\x00.", "begin or end"),
    ],
    ids=range(9),
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(ValueError, match=why):
        read_body(tmp_path)


def test_a_link_a_folder_and_a_giant_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(dump(GOOD))
    (tmp_path / NAME).symlink_to(tmp_path / "real")
    with pytest.raises(ValueError, match="not a plain file"):
        read_body(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    with pytest.raises(ValueError, match="not a plain file"):
        read_body(tmp_path)
    (tmp_path / NAME).rmdir()
    with pytest.raises(ValueError, match="missing"):
        read_body(tmp_path)
    with (tmp_path / NAME).open("wb") as file:
        file.truncate(LIMIT + 1)
    with pytest.raises(ValueError, match="larger than"):
        read_body(tmp_path)


def test_a_body_without_a_generation_is_refused() -> None:
    with pytest.raises(ValueError, match="generation"):
        generation_of(b'{"format": "restoke"}')
