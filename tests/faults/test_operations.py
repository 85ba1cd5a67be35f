"""The file layer sees each change, whoever makes it; the drive and the forks are what they say."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults import warm
from tests.faults.drives import Drive, replayed
from tests.faults.forks import die, in_forks, in_ranks
from tests.faults.operations import Operation, interposed
from tests.faults.trials import Trial, killed, recorded


def write_all(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(handle, data)
    os.posix_fallocate(handle, 0, 9)
    os.pwrite(handle, b"xy", 7)
    os.ftruncate(handle, 8)
    os.close(handle)


def write_to(path: Path, data: list[bytes], mode: str, buffering: int = -1) -> None:
    with path.open(mode, buffering=buffering) as file:
        file.writelines(data)


DESCRIBED = ["create a", "write a", "write a", "truncate a", "write a", "write a", "truncate a"]
CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a text": (lambda path: (path / "a").write_text("hello"), ["create a", "write a", "write a"]),
    "bytes, twice": (
        lambda path: [(path / "a").write_bytes(b"x") for _ in range(2)],
        ["create a", "write a", "truncate a", "write a"],
    ),
    "a buffer": (lambda path: write_to(path / "a", [b"12"] * 3, "xb", 4), ["create a", *["write a"] * 4]),
    "no buffer": (lambda path: write_to(path / "a", [b"12"], "ab", 0), ["create a", "write a", "write a"]),
    "a descriptor": (
        lambda path: write_all(path / "a", b"12"),
        DESCRIBED,
    ),
    "an update": (lambda path: write_to(path / "kept", [b"x"], "r+b"), ["write kept"]),
    "folders": (lambda path: os.makedirs(path / "b" / "c"), ["make b", "make b/c"]),
    "a tree that goes": (lambda path: shutil.rmtree(path / "tree"), ["remove tree/leaf", "remove tree"]),
    "a name": (lambda path: (path / "kept").replace(path / "new"), ["rename kept -> new"]),
    "a link that is followed": (lambda path: (path / "link" / "a").touch(), []),
    "what is only read": (lambda path: (path / "kept").read_bytes(), []),
    "what is elsewhere": (lambda path: (path.parent / "b").write_bytes(b"x"), []),
}


@pytest.mark.parametrize("case", CHANGES)
def test_each_change_below_the_folder_is_seen_and_its_replay_is_what_is_there(tmp_path: Path, case: str) -> None:
    path, start = tmp_path / "run", tmp_path / "start"
    for root in (path, start):
        (root / "tree").mkdir(parents=True)
        (root / "tree" / "leaf").write_bytes(b"leaf")
        (root / "kept").write_bytes(b"kept")
    change, expected = CHANGES[case]
    if case.startswith("a link"):
        (path / "link").symlink_to(tmp_path)
    with interposed(path) as done:
        change(path)
    assert [str(it) for it in done] == expected
    (path / "link").unlink(missing_ok=True)
    assert replayed(start, done).digest() == Drive.of(path).digest()


def test_what_is_refused_is_not_done_and_a_write_is_refused_in_its_middle(tmp_path: Path) -> None:
    def full(operation: Operation) -> None:
        if operation.kind == "make" or operation.offset:
            raise OSError(errno.ENOSPC, "No space left on device")

    with interposed(tmp_path, full) as done:
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "a").mkdir()
        with (tmp_path / "b").open("wb", buffering=0) as file:
            assert file.write(b"1234") == 2
            with pytest.raises(OSError, match="No space"):
                file.write(b"34")
    assert [str(it) for it in done] == ["create b", "write b"]
    assert (tmp_path / "b").read_bytes() == b"12"
    assert not (tmp_path / "a").exists()


def test_a_change_that_is_not_modelled_is_an_error_and_not_overlooked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with interposed(tmp_path), pytest.raises(AssertionError, match=r"os\.link is not modelled"):
        os.link(tmp_path / "a", tmp_path / "b")


def behind_the_back(folder: Path, world: object) -> None:
    import torch

    torch.save({}, folder / "a")  # by a writer in C++


def nothing(folder: Path, world: object = None) -> None:
    pass


def test_a_writer_that_bypasses_the_file_layer_is_found(folder: Path) -> None:
    with pytest.raises(AssertionError, match="behind the file layer's back"):
        warm.call(recorded, Trial(nothing, behind_the_back, nothing), folder)


def two_files(folder: Path, world: object) -> None:
    for name in "ab":
        (folder / name).write_bytes(b"12")


def names(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir(), key=lambda path: (path.name != "old", path.name))}


def test_a_kill_leaves_what_was_done_before_it_and_half_a_write(folder: Path) -> None:
    seen = [it.seen for it in warm.call(killed, Trial(nothing, two_files, names), folder)]
    first = [{}, {"a": b""}, {"a": b"1"}]
    assert seen == [*first, *[{"a": b"12"} | {key.replace("a", "b"): it for key, it in one.items()} for one in first], seen[-1]]
    assert seen[-1] == {"a": b"12", "b": b"12"}


def drive_after(folder: Path, *done: Operation) -> list[dict[str, bytes]]:
    (folder / "start").mkdir()
    (folder / "start" / "old").write_bytes(b"old")
    drive = replayed(folder / "start", done)
    images = enumerate(drive.images(random.Random(0), more=20))
    return [names(image.write_to(folder / str(i))) for i, image in images]


CREATED = (Operation("create", "a"), Operation("write", "a", data=b"12"))


def test_what_is_not_synced_may_be_lost_and_its_name_too(folder: Path) -> None:
    left = drive_after(folder, *CREATED)
    old = {"old": b"old"}
    for expected in (old, old | {"a": b"12"}, old | {"a": b""}, old | {"a": b"1\0"}):
        assert expected in left


@pytest.mark.parametrize("path", ["a", "."])
def test_a_file_and_its_name_are_synced_apart(folder: Path, path: str) -> None:
    left = drive_after(folder, *CREATED, Operation("sync", path))
    assert ({"old": b"old"} in left) == (path == "a")
    assert ({"old": b"old", "a": b""} in left) == (path == ".")


def test_a_rename_is_there_as_a_whole_or_not_at_all(folder: Path) -> None:
    assert {*map(str, drive_after(folder, Operation("rename", "old", "new")))} == {"{'old': b'old'}", "{'new': b'old'}"}


def test_names_in_one_folder_are_lost_from_the_last_on(folder: Path) -> None:
    left = drive_after(folder, *(Operation("create", name) for name in "abc"))
    assert {*map("".join, left)} == {"old", "olda", "oldab", "oldabc"}


def raising() -> None:
    raise LookupError("lost")


def stuck() -> None:
    signal.pause()


def four_ends() -> list[object]:
    start = time.monotonic()
    ends = in_forks([partial(len, "four"), raising, die, stuck], patience=0.5)
    return [*ends, time.monotonic() - start]


def test_how_each_fork_ended_is_told_in_bounded_time() -> None:
    good, bad, dead, hung, seconds = warm.call(four_ends)
    assert (good.code, good.value, good.killed) == (0, 4, False)
    assert (bad.code, bad.kind) == (3, "LookupError")
    assert "lost" in bad.error
    assert (dead.code, dead.killed, dead.hung) == (-signal.SIGKILL, True, False)
    assert (hung.killed, hung.hung) == (False, True)
    assert seconds < 5


def rank_of(world: object) -> tuple[int, int]:
    return world.rank, world.size  # type: ignore[attr-defined]


def test_ranks_have_a_world_of_their_own() -> None:
    assert [end.value for end in warm.call(in_ranks, 2, rank_of)] == [(0, 2), (1, 2)]
