"""Damage to files is found and the file named; the newest good generation is loaded, saying so."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from restoke import checkpoint
from restoke.checkpoint.manifest import NAME
from restoke.errors import CheckpointError
from tests import ranks
from tests.checkpoint import on_ranks
from tests.checkpoint.states import load, save

FILES = ["manifest.json", "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"]


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for tag, mark in (("old", 1.0), ("a", 2.0)):
        ranks.run(2, on_ranks.save, folder, tag, mark)
    return folder


@pytest.fixture
def two(of_two_ranks: Path, tmp_path: Path) -> Path:
    """A folder with the checkpoints `old` and, newer, `a` of two ranks; `a` is to be damaged."""
    return Path(shutil.copytree(of_two_ranks, tmp_path / "run"))


def check_named(folder: Path, name: str) -> str:
    """`a` is refused, and `old` is loaded, each time with the name of the file; what the refusal says."""
    with pytest.raises(CheckpointError) as error:
        load(folder, "a")
    assert error.value.problems[0].instead
    assert name in str(error.value)
    saved = load(folder)
    assert (saved.tag, saved.meta["mark"]) == ("old", 1.0)
    (note,) = saved.notes
    assert "loaded old, the newest checkpoint that can be: a cannot" in note
    assert name in note
    return str(error.value)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(two: Path, name: str, share: float) -> None:
    data = (two / "a" / name).read_bytes()
    (two / "a" / name).write_bytes(data[: int(len(data) * share)])
    check_named(two, name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(two: Path, name: str) -> None:
    (two / "a" / name).unlink()
    assert f"{name} is missing" in check_named(two, name)


def test_each_of_200_flipped_bits_is_found_and_its_file_named(two: Path) -> None:
    chance = random.Random(0)
    for _ in range(200):
        name = chance.choice(FILES)
        good = (two / "a" / name).read_bytes()
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        (two / "a" / name).write_bytes(bad)
        check_named(two, name)
        (two / "a" / name).write_bytes(good)
    assert (load(two).tag, load(two).notes) == ("a", [])


def test_a_file_of_another_generation_is_refused(two: Path) -> None:
    shutil.copy(two / "old" / FILES[1], two / "a" / FILES[1])
    assert f"{FILES[1]} does not match its checksum" in check_named(two, FILES[1])


def test_a_flipped_generation_does_not_hide_the_newest(two: Path) -> None:
    text = (two / "a" / NAME).read_bytes()
    assert b'"generation": 2' in text
    (two / "a" / NAME).write_bytes(text.replace(b'"generation": 2', b'"generation": 0'))
    assert "manifest.json does not match its checksum" in check_named(two, NAME)


def test_what_is_damaged_is_not_listed_as_good(two: Path) -> None:
    (two / "a" / FILES[2]).unlink()
    one, other = checkpoint.listing(two, verify=True)
    assert (one.good, one.fault) == (False, f"{FILES[2]} is missing")
    assert (other.tag, other.good, other.fault) == ("old", True, "")


def test_what_was_opened_stays_readable_when_its_files_go(tmp_path: Path) -> None:
    path = save(tmp_path, "a", 1.0)
    saved = load(tmp_path)
    shutil.rmtree(path)
    assert saved.read("model/weight").unique().tolist() == [1.0]
    saved._files.clear()
    with pytest.raises(CheckpointError, match=r"rank-00000-of-00001\.safetensors could be read when it was opened"):
        saved.read("model/weight")
