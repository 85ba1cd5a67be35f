"""An export takes its place as a whole, piece by piece through little memory, and spoils nothing that is there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from restoke.checkpoint import Weights, export, export_files
from restoke.checkpoint.disk import Disk
from restoke.checkpoint.export_plan import boxes
from restoke.checkpoint.natural import natural
from restoke.checkpoint.sizes import parse_size, shown_size
from restoke.errors import CheckpointError
from tests.checkpoint.test_export import INDEX, loaded, refusal
from tests.checkpoint.weight_files import EVERY, of_dtype, of_tensors, own_memory, same


def old_and_new(folder: Path) -> None:
    """Two checkpoints of the same names, each number telling which it is of."""
    for name, mark in (("old", 1.0), ("new", 2.0)):
        of_tensors(folder / name, {f"w{i}": torch.full((10,), mark) for i in range(6)})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


ONE, THREE, SIX = {}, {"shard_size": 80}, {"shard_size": 40}


def test_an_export_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    old_and_new(tmp_path)
    for options in (ONE, THREE):
        out = tmp_path / f"out{len(options)}"
        export(tmp_path / "old", out, **options)
        before = names(out)
        for again in (ONE, SIX):
            assert "is there already" in refusal(tmp_path / "new", out, **again)
        assert names(out) == before
        assert loaded(out)["w0"].eq(1.0).all()
    export(tmp_path / "old", tmp_path / "x.safetensors")
    assert "x.safetensors is there already" in refusal(tmp_path / "new", tmp_path / "x.safetensors")
    export(tmp_path / "new", tmp_path / "x.safetensors", force=True)
    assert load_file(tmp_path / "x.safetensors")["w0"].eq(2.0).all()


@pytest.mark.parametrize("old", [ONE, THREE, SIX], ids=["one", "three", "six"])
@pytest.mark.parametrize("new", [ONE, THREE, SIX], ids=["one", "three", "six"])
def test_a_forced_export_leaves_nothing_of_the_old_one_and_all_else(tmp_path: Path, old: dict, new: dict) -> None:  # type: ignore[type-arg]
    old_and_new(tmp_path)
    export(tmp_path / "old", tmp_path / "out", **old)
    (tmp_path / "out/config.json").write_text("{}")
    done = export(tmp_path / "new", tmp_path / "out", force=True, **new)
    assert names(tmp_path / "out") == sorted([*(file.name for file in done.files), "config.json"])
    assert all(tensor.eq(2.0).all() for tensor in loaded(tmp_path / "out").values())


class Killed(BaseException):
    pass


@pytest.mark.parametrize("old", [None, ONE, THREE, SIX], ids=["none", "one", "three", "six"])
@pytest.mark.parametrize("new", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("place", ["folder", "file"])
def test_killed_before_any_operation_no_mixture_is_read(tmp_path: Path, old: dict | None, new: dict, place: str) -> None:  # type: ignore[type-arg]
    if place == "file" and (old or new):
        return
    old_and_new(tmp_path)
    seen = set()
    for count in range(200):
        out = tmp_path / f"{count}{'.safetensors' if place == 'file' else ''}"
        if old is not None:
            export(tmp_path / "old", out, **old)
        done = []

        def before(operation: str, path: Path, count: int = count, done: list[str] = done) -> None:
            done.append(operation)
            if len(done) > count:
                raise Killed

        try:
            export(tmp_path / "new", out, force=True, disk=Disk(before), **new)
        except Killed:
            pass
        else:
            break
        seen.add(state_of(out))
    assert state_of(out) == "new"
    allowed = {"nothing", "new"} if old is None else {"old", "new"}
    assert seen <= (allowed | {"nothing"} if old in (THREE, SIX) and new else allowed)
    assert len(done) > 5


def state_of(out: Path) -> str:
    """Which of the two a loader gets; it fails where there is neither a whole file nor an index."""
    try:
        tensors = load_file(out) if out.suffix else loaded(out)
    except FileNotFoundError:
        return "nothing"
    (mark,) = {value for tensor in tensors.values() for value in tensor.tolist()}
    assert len(tensors) == 6
    return {1.0: "old", 2.0: "new"}[mark]


def test_a_full_disk_is_one_refusal_and_leaves_no_trace(tmp_path: Path) -> None:
    old_and_new(tmp_path)
    export(tmp_path / "old", tmp_path / "out", **THREE)

    def before(operation: str, path: Path) -> None:
        if operation == "write" and path.name.startswith("model-00002"):
            raise OSError(errno.ENOSPC, "No space left on device")

    said = refusal(tmp_path / "new", tmp_path / "out", force=True, disk=Disk(before), **THREE)
    assert "it cannot be written: No space left on device" in said
    assert state_of(tmp_path / "out") == "old"
    assert names(tmp_path / "out") == [*(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)), INDEX]


def test_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    old_and_new(tmp_path)
    (tmp_path / "file").touch()
    assert "it is a file" in refusal(tmp_path / "new", tmp_path / "file")
    assert "it cannot be written" in refusal(tmp_path / "new", tmp_path / "file/below")
    assert "it is a checkpoint of restoke" in refusal(tmp_path / "new", tmp_path / "old/a")
    assert "x.safetensors is one file" in refusal(tmp_path / "new", tmp_path / "x.safetensors", shard_size=40)
    assert "cannot" in refusal(tmp_path / "new", tmp_path / ("x" * 300))


def test_missing_folders_are_made_and_a_relative_place_is_meant_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_and_new(tmp_path)
    monkeypatch.chdir(tmp_path)
    export("new", "a/b/out")
    export("new", "here.safetensors")
    export("new", "c/d/x.safetensors")
    assert state_of(Path("a/b/out")) == state_of(Path("here.safetensors")) == state_of(Path("c/d/x.safetensors")) == "new"
    assert names(tmp_path) == ["a", "c", "here.safetensors", "new", "old"]


def test_the_model_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 96 << 20
    of_tensors(tmp_path / "c", {name: torch.zeros(24, size // 24 // 2, dtype=torch.bfloat16) for name in ("v", "w")})
    monkeypatch.setattr(export_files, "PIECE", 4 << 20)
    largest = 0
    read = Weights.read

    def watched(weights: Weights, *where: object) -> torch.Tensor:
        nonlocal largest
        tensor = read(weights, *where)  # type: ignore[arg-type]
        largest = max(largest, tensor.nbytes)
        return tensor

    monkeypatch.setattr(Weights, "read", watched)
    held = []
    start = own_memory()
    export(tmp_path / "c", tmp_path / "x.safetensors", dtype="float32", disk=Disk(lambda *_: held.append(own_memory())))
    assert largest == 2 << 20  # as float32 it has the 4 MiB of a piece
    assert max(held) - start < size // 2  # of 2 x size that it has
    assert (tmp_path / "x.safetensors").stat().st_size > 4 * size


@pytest.mark.parametrize("budget", [1, 7, 16, 40, 1000])
def test_pieces_of_any_size_give_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    tensors = {str(dtype)[6:]: of_dtype(dtype, 3, 2, 4) for dtype in EVERY} | {
        "scalar": torch.tensor(1.0),
        "one": torch.ones(99),
    }
    of_tensors(tmp_path / "c", tensors)
    monkeypatch.setattr(export_files, "PIECE", max(budget, 8))
    export(tmp_path / "c", tmp_path / "out")
    assert same(loaded(tmp_path / "out"), tensors)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 50))
def test_boxes_are_the_whole_in_the_order_of_memory(shape: list[int], largest: int) -> None:
    whole = torch.arange(int(torch.tensor(shape).prod()) if shape else 1).reshape(shape)
    cut = list(boxes(tuple(shape), largest))
    assert torch.cat([whole[box.within(cut[0].whole(tuple(shape)))].reshape(-1) for box in cut]).equal(whole.reshape(-1))
    assert all(box.volume <= largest for box in cut)


def test_names_are_sorted_as_people_count() -> None:
    right = ["a", "l.0", "l.2.b", "l.2.w", "l.03", "l.10.w", "l." + "9" * 5000, "l.x"]
    backwards = right[::-1]
    assert sorted(backwards, key=natural) == right
    sorted(["1a", "a1", "²", "1", "", "٣"], key=natural)


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 kb", 1500), ("2GiB", 2**31), ("7", 7), (7, 7), ("10B", 10), ("1TB", 10**12), ("1mib", 2**20)],
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert parse_size(text, "x") == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1e9", "5 apples", "5PB", "nan", "inf", "0.1", True, "9" * 40, "5GB5"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(CheckpointError, match="it is no size in bytes"):
        parse_size(text, "x")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1234, "1.23 KB"),
        (999_999, "1 MB"),
        (5 * 10**9, "5 GB"),
        (10**15, "1e+03 TB"),
    ],
)
def test_sizes_are_shown_in_three_digits(size: int, text: str) -> None:
    assert shown_size(size) == text
