"""What writers leave behind is cleaned by the next one, and never what another one is writing."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from restoke import checkpoint
from restoke.checkpoint import disk as disk_module
from restoke.checkpoint.disk import Disk, sole_writer
from restoke.errors import CheckpointError
from restoke.parts import Captured
from tests.checkpoint.states import ONE, load, mark_of, save
from tests.faults import saves, warm
from tests.faults.forks import End, in_forks
from tests.faults.saves import NEW, OLD


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")} - {".lock"}


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


def two_writers(folder: Path) -> list[End]:
    """One holds the folder until the other has found it locked."""
    locked, tried = os.pipe(), os.pipe()

    def hold() -> bool:
        with sole_writer(folder):
            os.write(locked[1], b"x")
            os.read(tried[0], 1)
            return not (folder / "a").exists()

    def wait() -> int:
        os.read(locked[0], 1)
        return len(failures(lambda: saves.save_alone(folder, "a"), lambda: os.write(tried[1], b"x")))

    return in_forks([hold, wait])


def failures(act: Callable[[], Any], told: Callable[[], Any]) -> list[OSError]:
    """The locks that were refused during the act; `told` is called at the first."""
    found: list[OSError] = []
    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        try:
            real(handle, how)
        except OSError as error:
            found.append(error)
            if len(found) == 1:
                told()
            raise

    fcntl.flock = flock  # in this fork
    act()
    return found


def test_a_writer_waits_for_another_that_finishes(folder: Path) -> None:
    holder, waiter = warm.call(two_writers, folder)
    assert holder.value is True, holder
    assert waiter.value >= 1, waiter
    assert saves.marks(folder, "a") == {OLD}


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


def test_a_name_that_cannot_be_synced_is_told_and_the_new_one_is_there(tmp_path: Path) -> None:
    save(tmp_path, "a", OLD)
    done: list[str] = []

    def before(operation: str, path: Path) -> None:
        done.append(operation)
        if done[-2:] == ["rename", "sync"]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(CheckpointError, match="b is saved, but a loss of power may still undo it"):
        save(tmp_path, "b", NEW, disk=Disk(before))
    assert mark_of(load(tmp_path)) == NEW
