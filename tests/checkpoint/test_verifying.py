"""Every damaged file of every checkpoint is named, and what is whole is called good."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from restoke.checkpoint.manifest import NAME, Manifest, dump, parse, read_body
from restoke.checkpoint.verifying import Verdict, to_read, unfinished, verified
from restoke.errors import CheckpointError
from tests import ranks
from tests.checkpoint import on_ranks
from tests.checkpoint.states import save

FILE = "rank-00000-of-00001.safetensors"


def verdicts(folder: Path, tag: str | None = None) -> list[Verdict]:
    return list(verified(folder, tag, lambda *_: None))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for i, tag in enumerate("abc"):
        save(tmp_path, tag, float(i))
    return tmp_path


def test_whole_checkpoints_are_good_newest_first(three: Path) -> None:
    found = verdicts(three)
    assert [(it.tag, it.generation, it.files, it.faults) for it in found] == [("c", 3, 1, ()), ("b", 2, 1, ()), ("a", 1, 1, ())]
    assert sum(it.bytes for it in found) == to_read(three, None) == sum(file.stat().st_size for file in three.rglob(FILE))


def test_progress_is_told_of_every_byte(three: Path) -> None:
    told: list[tuple[str, int]] = []
    list(verified(three, None, lambda tag, read: told.append((tag, read))))
    assert [tag for tag, _ in told] == ["c", "b", "a"]
    assert sum(read for _, read in told) == to_read(three, None)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[random.Random(3).randrange(len(data))] ^= 4
    file.write_bytes(data)


def link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


DAMAGE = [cut, grow, flip, link, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [FILE, NAME])
def test_what_is_damaged_is_named_and_the_others_stay_good(three: Path, damage: Callable[[Path], None], name: str) -> None:
    damage(three / "b" / name)
    found = {it.tag: it.faults for it in verdicts(three)}
    assert found["a"] == found["c"] == ()
    assert len(found["b"]) == 1
    assert name in found["b"][0]


def test_each_damaged_file_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    ranks.run(3, on_ranks.save, tmp_path, "a", 1.0)
    for rank in (0, 2):
        flip(tmp_path / "a" / f"rank-0000{rank}-of-00003.safetensors")
    (verdict,) = verdicts(tmp_path)
    assert [fault.split()[0] for fault in verdict.faults] == [f"rank-0000{rank}-of-00003.safetensors" for rank in (0, 2)]


def test_one_checkpoint_is_verified_by_tag_or_by_its_path(three: Path) -> None:
    flip(three / "c" / FILE)
    assert [(it.tag, it.faults) for it in verdicts(three, "a")] == [("a", ())]
    assert [(it.tag, it.faults) for it in verdicts(three / "a")] == [("a", ())]
    assert len(verdicts(three, "c")[0].faults) == 1


def rewritten(path: Path, change: Callable[[Manifest], Manifest]) -> None:
    (path / NAME).write_bytes(dump(change(parse(read_body(path)))))


def test_values_that_loading_would_refuse_are_a_fault_of_the_manifest(three: Path) -> None:
    from attrs import evolve

    rewritten(three / "b", lambda manifest: evolve(manifest, values={"extras": {"$nothing": 1}}))
    rewritten(three / "c", lambda manifest: evolve(manifest, rank_values=({"$float": "zz"},)))
    found = {it.tag: it.faults for it in verdicts(three)}
    assert found["a"] == ()
    assert "manifest.json" in found["b"][0]
    assert "manifest.json" in found["c"][0]


def test_what_a_save_left_behind_is_listed_and_is_no_checkpoint(three: Path) -> None:
    shutil.copytree(three / "c", three / ".tmp-1234")
    assert unfinished(three) == [".tmp-1234"]
    assert [it.tag for it in verdicts(three)] == ["c", "b", "a"]


def test_what_was_moved_aside_when_the_process_died_is_verified_under_its_tag(three: Path) -> None:
    (three / "c").rename(three / ".old-c")
    assert [(it.tag, it.faults) for it in verdicts(three)] == [("c", ()), ("b", ()), ("a", ())]


def test_a_checkpoint_that_a_save_replaces_meanwhile_is_not_called_damaged(three: Path) -> None:
    walk = verified(three, None, lambda *_: None)
    next(walk)
    save(three, "b", 9.0)
    shutil.rmtree(three / "a")
    assert [(it.tag, it.generation, it.faults) for it in walk] == [("b", 4, ())]


@pytest.mark.parametrize("made", ["nothing", "empty", "file", "foreign"])
def test_where_there_is_no_checkpoint_that_is_said(tmp_path: Path, made: str) -> None:
    path = tmp_path / "x"
    if made == "file":
        path.write_text("x")
    elif made != "nothing":
        path.mkdir()
    if made == "foreign":
        (path / "model.pt").touch()
    with pytest.raises(CheckpointError, match="folder="):
        verdicts(path)
