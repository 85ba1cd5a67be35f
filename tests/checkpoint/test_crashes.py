"""Killed before any of its file operations, a save leaves wholly the old state or wholly the new one."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from restoke import checkpoint
from restoke.checkpoint import disk as disk_module
from restoke.checkpoint.disk import Disk, sole_writer
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk
from restoke.world import World
from tests.checkpoint.killing import code_of, fork_to, killed_before, ranks_killed_before
from tests.checkpoint.states import ONE, load, mark_of, save

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # the children only save
OLD, NEW = 1.0, 2.0


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")} - {".lock"}


@pytest.mark.parametrize(("tag", "keep"), [("new", None), ("old", None), ("new", 1), ("old", 1)])
def test_killed_before_any_operation_the_old_or_the_new_state_loads(tmp_path: Path, tag: str, keep: int | None) -> None:
    marks = []
    for nth in itertools.count():
        folder = tmp_path / str(nth)
        save(folder, "old", OLD)
        died = killed_before(nth, lambda disk, folder=folder: save(folder, tag, NEW, keep=keep, disk=disk))
        saved = load(folder)
        marks.append(mark_of(saved))
        assert saved.notes == []
        assert marks[-1] == NEW or mark_of(load(folder, "old")) == OLD
        save(folder, "next", 3.0, keep=1)
        assert (mark_of(load(folder)), hidden(folder)) == (3.0, set())
        shutil.rmtree(folder)
        if not died:
            break
    assert marks == sorted(marks)
    assert (marks[0], marks[-1]) == (OLD, NEW)
    assert len(marks) > 12


def test_killed_in_the_first_save_ever_there_is_nothing_or_all_of_it(tmp_path: Path) -> None:
    for nth in itertools.count():
        folder = tmp_path / str(nth)
        died = killed_before(nth, lambda disk, folder=folder: save(folder, "a", NEW, disk=disk))
        if not died or (folder / "a").exists():
            assert mark_of(load(folder)) == NEW
        else:
            with pytest.raises(CheckpointError, match=r"empty|no such folder"):
                load(folder)
        if not died:
            break
    assert nth > 8


def two_ranks(folder: Path) -> Callable[[World, Disk], object]:
    def write(world: World, disk: Disk) -> object:
        chunks = {
            "model/w": Chunk(torch.full((2, 3), NEW), (4, 3), (2 * world.rank, 0)),
            "model/b": Chunk.whole(torch.full((3,), NEW)),
        }
        values = {"extras": {"mark": NEW, "seen": torch.full((2,), NEW)}, "rank/rng": {"state": NEW}}
        return checkpoint.write(folder, "old", Captured(chunks, values), world, meta={"mark": NEW}, keep=1, disk=disk)

    return write


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_before_any_operation_leaves_the_old_or_the_new_state_and_the_other_does_not_hang(
    tmp_path: Path, victim: int
) -> None:
    marks = []
    for nth in itertools.count():
        folder = tmp_path / str(nth)
        save(folder, "old", OLD)
        died = ranks_killed_before(nth, victim, two_ranks(folder))
        marks.append(mark_of(load(folder)))
        if not died:
            break
    assert marks == sorted(marks)
    assert (marks[0], marks[-1]) == (OLD, NEW)
    assert len(marks) > (12 if victim == 0 else 3)


def test_every_file_is_on_the_disk_before_the_name_and_the_name_before_anything_is_deleted(tmp_path: Path) -> None:
    save(tmp_path, "a", OLD)
    done: list[tuple[str, str]] = []
    save(tmp_path, "a", NEW, disk=Disk(lambda operation, path: done.append((operation, path.name))))
    operations = [operation for operation, _ in done]
    named = done.index(("rename", "a"))
    files = [name for operation, name in done if operation == "create"]
    assert files == ["rank-00000-of-00001.safetensors", "manifest.json"]
    for name in files:
        assert done.index(("create", name)) < done.index(("write", name)) < done.index(("sync", name)) < named
    staged = next(name for operation, name in done if operation == "make")
    assert done.index(("sync", "manifest.json")) < done.index(("sync", staged)) < done.index(("rename", ".old-a")) < named
    assert done[named + 1] == ("sync", tmp_path.name)
    assert operations.index("remove") > named + 1
    assert operations.count("remove") == 1


def test_what_a_dead_writer_left_is_cleaned_by_the_next(tmp_path: Path) -> None:
    save(tmp_path, "a", OLD)
    (tmp_path / ".tmp-dead").mkdir()
    (tmp_path / ".tmp-dead" / "rank-00000-of-00001.safetensors").write_bytes(b"half")
    shutil.copytree(tmp_path / "a", tmp_path / ".old-a")
    shutil.copytree(tmp_path / "a", tmp_path / ".old-b")
    assert load(tmp_path, "b").tag == "b"
    save(tmp_path, "c", NEW)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c", ".lock"}


def test_what_a_living_writer_is_writing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "PATIENCE", 0.1)
    tmp_path.joinpath(".tmp-alive").mkdir()
    with sole_writer(tmp_path) as alone:
        assert alone
        with pytest.raises(CheckpointError, match="another process has been saving into this folder"):
            save(tmp_path, "a", NEW)
    assert hidden(tmp_path) == {".tmp-alive"}
    save(tmp_path, "a", NEW)
    assert hidden(tmp_path) == set()


def test_a_writer_waits_for_another_that_finishes(tmp_path: Path) -> None:
    ready, go = os.pipe(), os.pipe()

    def hold() -> None:
        with sole_writer(tmp_path):
            os.write(ready[1], b"x")
            os.read(go[0], 1)

    child = fork_to(hold)
    os.read(ready[0], 1)
    waited = []

    def before(operation: str, path: Path) -> None:
        waited.append(code_of(child) if not waited else 0)

    os.write(go[1], b"x")
    save(tmp_path, "a", NEW, disk=Disk(before))
    assert waited[0] == 0
    for end in (*ready, *go):
        os.close(end)


def test_without_locks_nothing_of_others_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(disk_module.fcntl, "flock", unsupported)
    (tmp_path / ".tmp-whose").mkdir()
    save(tmp_path, "a", NEW)
    assert hidden(tmp_path) == {".tmp-whose"}
    assert mark_of(load(tmp_path)) == NEW


def test_an_old_one_that_cannot_be_deleted_is_told_and_the_new_one_is_saved(tmp_path: Path) -> None:
    save(tmp_path, "a", OLD)

    def before(operation: str, path: Path) -> None:
        if operation == "remove":
            raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises(CheckpointError, match="b is saved, but an older checkpoint could not be deleted"):
        checkpoint.write(tmp_path, "b", Captured(), ONE, meta={}, keep=1, disk=Disk(before))
    assert load(tmp_path).tag == "b"
