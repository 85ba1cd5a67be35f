"""What a rank reads is what was written, whether it was kept when it was verified or is read in boxes from the files."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restoke import checkpoint
from restoke.checkpoint import holding, reading
from restoke.checkpoint.container import DTYPES, write_tensors
from restoke.checkpoint.disk import DISK
from restoke.checkpoint.formats import ALGORITHM, checksum
from restoke.checkpoint.holding import Held
from restoke.checkpoint.reading import TensorFile
from restoke.checkpoint.tiling import Box
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk
from tests import ranks
from tests.checkpoint import uneven
from tests.checkpoint.states import ONE, bits, load

WHOLE = torch.arange(7 * 5 * 4, dtype=torch.int16).reshape(7, 5, 4)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> TensorFile:
    path = tmp_path_factory.mktemp("file") / "a.safetensors"
    write_tensors(path, {"first": torch.ones(3), "x": WHOLE}, DISK)
    return TensorFile.open(path)


@given(st.data())
def test_every_box_of_a_file_lands_where_it_is_wanted(file: TensorFile, data: st.DataObject) -> None:
    """Whatever the limit below which a part is read with what lies between its rows."""
    offsets = tuple(data.draw(st.integers(0, n - 1)) for n in WHOLE.shape)
    shape = tuple(data.draw(st.integers(1, n - start)) for start, n in zip(offsets, WHOLE.shape, strict=True))
    inner, held = Box(offsets, shape), Box.whole((7, 5, 4))
    into = torch.full((9, 9, 9), -1, dtype=torch.int16)
    target = into[1 : 1 + shape[0], 2 : 2 + shape[1], 3 : 3 + shape[2]]
    if data.draw(st.booleans()):
        target = torch.empty(shape, dtype=torch.int16)
    kept, reading.PIECE = reading.PIECE, data.draw(st.sampled_from([2, 10, 64, 1 << 20]))
    try:
        file.read("x", "int16", held, inner, target)
    finally:
        reading.PIECE = kept
    assert target.equal(WHOLE[inner.within(held)])
    assert int((into != -1).sum()) in (0, inner.volume)


def test_rows_land_among_others(file: TensorFile) -> None:
    """They lie in one piece in the file, and apart in memory."""
    into = torch.full((7, 5, 6), -1, dtype=torch.int16)
    rows = Box((2, 0, 0), (3, 5, 4))
    file.read("x", "int16", Box.whole((7, 5, 4)), rows, into[2:5, :, 1:5])
    assert into[2:5, :, 1:5].equal(WHOLE[2:5])
    assert int((into != -1).sum()) == rows.volume


def test_parts_are_no_larger_than_they_must_be() -> None:
    held, limit = Box.whole((1000, 1000)), 5000
    column = Box((0, 3), (1000, 1))
    parts = list(reading._parts(column, held, column, limit))
    assert sum(part.volume for part in parts) == 1000
    assert all(reading._cover(part, held)[1] <= limit for part in parts)
    rows = Box((10, 0), (500, 1000))
    assert list(reading._parts(rows, held, rows, limit)) == [rows]


@pytest.mark.parametrize("changed", [("bfloat16", (7, 5, 4)), ("int16", (7, 4, 5))])
def test_a_file_that_says_other_than_the_manifest_is_refused(file: TensorFile, changed: tuple[str, Any]) -> None:
    dtype, shape = changed
    with pytest.raises(ValueError, match="holds x no more as the manifest says"):
        file.read("x", dtype, Box.whole(shape), Box.whole(shape), torch.empty(shape, dtype=DTYPES[dtype]))


def test_a_file_that_was_cut_off_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": WHOLE}, DISK)
    opened = TensorFile.open(path)
    with path.open("r+b") as shorter:
        shorter.truncate(200)
    with pytest.raises(ValueError, match="it ends too early"):
        opened.read("x", "int16", Box.whole((7, 5, 4)), Box.whole((7, 5, 4)), torch.empty(7, 5, 4, dtype=torch.int16))


def test_an_open_file_is_closed_with_its_reader(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": WHOLE}, DISK)
    opened = TensorFile.open(tmp_path / "a")
    raw = opened._file
    del opened
    gc.collect()
    assert raw.closed


TENSORS = {name: torch.randint(0, 2, (5, 16), dtype=torch.uint8).view(dtype) for name, dtype in DTYPES.items()}


def wanted_of(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[Box, str]]:
    return {key: (Box.whole(tuple(it.shape)), str(it.dtype).removeprefix("torch.")) for key, it in tensors.items()}


@pytest.mark.parametrize(("room", "step"), [(0, 7), (100, 7), (200, 64), (1 << 20, 1 << 18)])
def test_what_is_kept_is_what_was_written_and_the_checksum_is_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, step: int
) -> None:
    monkeypatch.setattr(holding, "LEAST", 1)
    monkeypatch.setattr(holding, "STEP", step)
    entry = write_tensors(tmp_path / "a", TENSORS, DISK)
    held = Held(room)
    assert held.checksum(tmp_path / "a", ALGORITHM, 3, wanted_of(TENSORS)) == entry.checksum
    assert held.room >= 0
    given = {key: tensor for key in TENSORS if (tensor := held.give(3, key)) is not None}
    assert sum(tensor.nbytes for tensor in given.values()) == room - held.room
    assert (len(given) == len(TENSORS)) == (room > 10_000)
    for key, tensor in given.items():
        assert tensor.dtype == TENSORS[key].dtype
        assert bits(tensor) == bits(TENSORS[key])
        assert held.give(3, key) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0",
        (1 << 62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]rest",
        (24).to_bytes(8, "little") + b'{"int8":{"dtype":"I8"}} rest',
        (72).to_bytes(8, "little") + b'{"int8":{"dtype":"I8","shape":[5,16],"data_offsets":[9,89]}}'.ljust(72) + b"x" * 100,
        (72).to_bytes(8, "little") + b'{"int8":{"dtype":"I8","shape":[5,16],"data_offsets":[0,80]}}'.ljust(72) + b"x",
    ],
    ids=["empty", "short", "a huge header", "a list", "no offsets", "a gap", "cut off"],
)
def test_the_checksum_of_what_is_no_file_of_ours_is_that_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(holding, "LEAST", 1)
    (tmp_path / "a").write_bytes(data)
    wanted, held = {"int8": (Box.whole((5, 16)), "int8")}, Held()
    assert held.checksum(tmp_path / "a", ALGORITHM, 0, wanted) == checksum(tmp_path / "a", ALGORITHM)
    assert held.give(0, "int8") is None or data.endswith(b"}}            x")  # that one's checksum is wrong already


def test_what_was_kept_is_given_once_and_then_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LEAST", 1)
    tensor = torch.arange(20.0).reshape(5, 4)
    checkpoint.write(tmp_path, "a", Captured({"x": Chunk.whole(tensor)}, {}), ONE, meta={})
    saved = load(tmp_path)
    assert saved._held.give(0, "x") is not None
    saved = load(tmp_path)
    assert saved.read("x", (1, 1), (3, 2)).equal(tensor[1:4, 1:3])
    saved = load(tmp_path)
    saved.read("x").fill_(7)
    assert saved.read("x").equal(tensor)


def test_what_is_damaged_is_never_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LEAST", 1)
    for mark in (1.0, 2.0):
        captured = Captured({"x": Chunk.whole(torch.full((9,), mark))}, {})
        path = checkpoint.write(tmp_path, f"step-{mark:.0f}", captured, ONE, meta={})
    file = path / "rank-00000-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert load(tmp_path).read("x").tolist() == [1.0] * 9
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        load(tmp_path, "step-2")


@pytest.mark.parametrize("cuts", [[0, 11, 11, 12], [0, 0, 5, 12], [0, 3, 4, 4, 12], [0, 12, 12, 12, 12]], ids=str)
def test_uneven_and_empty_chunks_are_read_at_any_world_size(tmp_path: Path, cuts: list[int]) -> None:
    ranks.run(len(cuts) - 1, uneven.save, tmp_path, cuts)
    for size in (1, 2, 3, 4):
        assert all(ranks.run(size, uneven.load, tmp_path, size))


def test_uneven_chunks_on_a_grid_are_read_in_any_boxes(tmp_path: Path) -> None:
    ranks.run(4, uneven.save_on_a_grid, tmp_path)
    for size in (1, 3, 4):
        assert all(ranks.run(size, uneven.load, tmp_path, size))
