"""On a full disk all ranks stop with one clear message, the old generation loads, and nothing piles up."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults import refusals, saves, warm
from tests.faults.forks import in_forks, in_ranks
from tests.faults.refusals import Refused, Told
from tests.faults.saves import NEW, NEXT, OLD, replacing
from tests.faults.trials import looked

HIDDEN = (".tmp-", ".old-")


def check(told: Told) -> None:
    """One message on all ranks, which says who failed, why, and what is there now."""
    (message,) = set(told.said)
    after_commit = told.seen.newest == {NEW}
    assert told.seen.newest in ({OLD}, {NEW}), told
    assert (told.seen.after, told.seen.left, told.seen.notes) == ({NEXT}, {"next"}, []), told
    if not message:
        assert after_commit, told  # half a write was refused once, and the other half then went through; or only removals
        return
    assert message.startswith("CheckpointError: "), told
    assert "No space left on device" in message, told
    says = "is saved, but" if after_commit else f"rank {told.case.rank}: No space left on device"
    assert says in message, told
    assert ("what was saved before is untouched" in message) != after_commit, told
    hidden = [name for name in told.left if name.startswith(HIDDEN)]
    assert len(hidden) <= 1, told


@pytest.mark.parametrize(
    ("tag", "keep"),
    [("old", 1), pytest.param("new", 1, marks=pytest.mark.slow), pytest.param("old", None, marks=pytest.mark.slow)],
)
def test_each_operation_refused_on_any_rank_is_told_on_all(folder: Path, tag: str, keep: int | None) -> None:
    cases = warm.call(refusals.refused, replacing(tag, keep, 2), folder)
    for told in cases:
        check(told)
    assert {told.case.rank for told in cases} == {0, 1}
    assert sum(bool(told.said[0]) for told in cases) > 30


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fail_again(folder: Path, number: int) -> list[tuple[list[str], int]]:
    """Four times: what the ranks were told, and the bytes that are there afterwards."""
    trial = replacing("new", 1, 2)
    assert in_forks([partial(trial.prepare, folder)])[0].code == 0
    found = []
    for _ in range(4):
        ends = in_ranks(2, partial(_refused, folder, number))
        found.append(([end.value for end in ends], size_of(folder)))
    return found


def _refused(folder: Path, number: int, world: saves.World) -> str:
    before = Refused(0, number, for_good=True).before() if world.rank == 0 else refusals.nothing
    return refusals.attempt(replacing("new", 1, 2), folder, world, before)


@pytest.mark.parametrize("number", [1, 4, 8])
def test_saves_that_fail_again_and_again_take_no_more_room(folder: Path, number: int) -> None:
    found = warm.call(fail_again, folder, number)
    assert all("rank 0: No space left on device" in said for saids, _ in found for said in saids)
    assert len({size for _, size in found}) == 1


@contextlib.contextmanager
def mounted(options: str) -> Iterator[Path]:
    """A file system in memory of its own. Skips where mounting is not allowed."""
    with tempfile.TemporaryDirectory() as path:
        command = ["mount", "-t", "tmpfs", "-o", options, "restoke-test", path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except FileNotFoundError:
            pytest.skip("needs mount, which is not here")
        if done.returncode != 0:
            pytest.skip(f"needs a tmpfs of its own, which is refused: {done.stderr.strip()[:80]}")
        try:
            yield Path(path)
        finally:
            if subprocess.run(["umount", path], capture_output=True, timeout=20).returncode:
                subprocess.run(["umount", "--lazy", path], check=True, timeout=20)


def save_large(folder: Path, tag: str, mark: float, mib: int) -> list[str]:
    """What two ranks were told that save so many MiB."""
    ends = in_ranks(2, partial(_save_large, folder, tag, mark, mib))
    assert all(end.code == 0 for end in ends), [end.error for end in ends]
    return [end.value for end in ends]


def _save_large(folder: Path, tag: str, mark: float, mib: int, world: saves.World) -> str:
    try:
        saves.save(folder, world, tag, mark, keep=1, rows=mib << 16)  # 8 bytes each, on two ranks
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_on_a_disk_of_4_mb_the_old_generation_stays_until_there_is_room() -> None:
    with mounted("size=4m") as disk:
        assert warm.call(save_large, disk, "old", OLD, 2) == ["", ""]
        sizes = set()
        for _ in range(3):
            one, other = warm.call(save_large, disk, "new", NEW, 4)
            assert one == other
            assert one.startswith("CheckpointError: ")
            assert "No space left on device. Instead: free some space; what was saved before is untouched." in one
            assert {path.name for path in disk.iterdir()} == {"old", ".lock"}
            sizes.add(size_of(disk))
        assert len(sizes) == 1
        assert warm.call(save_large, disk, "new", NEW, 1) == ["", ""]
        (seen,) = warm.call(looked, replacing("new", 1, 1), [disk])
        assert seen.newest == {NEW}


def test_on_a_disk_without_inodes_the_old_generation_stays() -> None:
    with mounted("size=4m,nr_inodes=8") as disk:  # the root, the lock and old with three files: three are left
        assert warm.call(save_large, disk, "old", OLD, 1) == ["", ""]
        one, other = warm.call(save_large, disk, "new", NEW, 1)
        assert one == other
        assert "No space left on device" in one
        assert {path.name for path in disk.iterdir()} == {"old", ".lock"}
