"""Whatever happens to the files, it is found, named, and runs no code; one rank."""

from __future__ import annotations

import json
import pickle
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from restoke import checkpoint
from restoke.checkpoint.container import checksum
from restoke.checkpoint.manifest import HEAD, NAME, TAIL, dump, parse
from restoke.errors import CheckpointError
from tests import ranks
from tests.checkpoint import on_ranks
from tests.checkpoint.states import load, mark_of, save

FILES = ["manifest.json", "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"]


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    ranks.run(2, on_ranks.save, folder, "a", 1.0)
    return folder


@pytest.fixture
def two(of_two_ranks: Path, tmp_path: Path) -> Path:
    """A folder with the checkpoint `a` of two ranks, to be damaged."""
    return Path(shutil.copytree(of_two_ranks, tmp_path / "run"))


def refused(folder: Path, tag: str | None = "a") -> str:
    with pytest.raises(CheckpointError) as error:
        load(folder, tag)
    assert error.value.problems[0].instead
    return str(error.value)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(two: Path, name: str, share: float) -> None:
    data = (two / "a" / name).read_bytes()
    (two / "a" / name).write_bytes(data[: int(len(data) * share)])
    assert name in refused(two)
    assert name in refused(two, None)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(two: Path, name: str) -> None:
    (two / "a" / name).unlink()
    assert f"{name} is missing" in refused(two)


def test_each_of_200_flipped_bits_is_found_and_its_file_named(two: Path) -> None:
    chance = random.Random(0)
    for _ in range(200):
        name = chance.choice(FILES)
        good = (two / "a" / name).read_bytes()
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        (two / "a" / name).write_bytes(bad)
        assert name in refused(two)
        (two / "a" / name).write_bytes(good)
    assert load(two).tag == "a"


class Bomb:
    """What it unpickles to is a file that says so."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "how", [pickle.dumps, lambda bomb: torch.save(bomb, bomb.path + ".pt") or Path(bomb.path + ".pt").read_bytes()]
)
def test_a_pickle_in_place_of_a_file_is_refused_and_not_run(two: Path, name: str, how: Callable[[Bomb], bytes]) -> None:
    (two / "a" / name).write_bytes(how(Bomb(two / "went off")))
    assert name in refused(two)
    assert not (two / "went off").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_refused(two: Path, name: str) -> None:
    shutil.move(two / "a" / name, two / "elsewhere")
    (two / "a" / name).symlink_to(two / "elsewhere")
    assert f"{name} is not a plain file" in refused(two)
    (two / "a" / name).unlink()
    (two / "a" / name).symlink_to(two / "nowhere")
    assert f"{name} is not a plain file" in refused(two)


def resealed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and give it a right checksum again, as an attacker would."""
    data = (path / NAME).read_bytes()
    head = HEAD.match(data)
    assert head
    body = json.loads(data[head.end() : -len(TAIL)])
    change(body)
    manifest = parse(json.dumps(body).encode())
    (path / NAME).write_bytes(dump(manifest))


def test_a_file_of_another_generation_is_refused(two: Path) -> None:
    ranks.run(2, on_ranks.save, two, "b", 2.0)
    shutil.copy(two / "b" / FILES[1], two / "a" / FILES[1])
    assert f"{FILES[1]} does not match its checksum" in refused(two)


@pytest.mark.parametrize("change", ["dtype", "shape", "name", "fewer"])
def test_a_manifest_that_says_other_than_the_file_is_refused(two: Path, change: str) -> None:
    def changed(body: dict[str, Any]) -> None:
        tensors = body["tensors"]
        if change == "dtype":
            tensors["model/b"]["dtype"] = "int32"
        elif change == "shape":
            tensors["model/b"].update(shape=[2, 3], chunks=[[tensors["model/b"]["chunks"][0][0], [0, 0], [2, 3]]])
        elif change == "name":
            tensors["model/z"] = tensors.pop("model/b")
        else:
            tensors.pop("model/b")

    resealed(two / "a", changed)
    assert ".safetensors holds" in refused(two)


@pytest.mark.parametrize(
    "values",
    [{"x": {"$tensor": "none"}}, {"x": {"$array": ["model/w", "<f8", [2**60]]}}, {"x": {"$load": "x"}}, {"$tuple": []}, [1]],
)
def test_hostile_values_are_refused_and_an_older_checkpoint_is_loaded(two: Path, values: Any) -> None:
    ranks.run(2, on_ranks.save, two, "b", 2.0)
    resealed(two / "b", lambda body: body.update(values=values))
    assert "cannot be loaded" in refused(two, "b")
    assert load(two).tag == "a"


def test_hostile_values_of_a_rank_are_refused_when_they_are_asked_for(two: Path) -> None:
    resealed(two / "a", lambda body: body.update(rank_values=[{}, {"x": {"$eval": "1"}}]))
    saved = load(two)
    assert saved.rank_values[0] == {}
    with pytest.raises(CheckpointError, match="malformed"):
        saved.rank_values[1]


HUGE = json.dumps({"model/b": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**63 - 1]}}).encode()


@pytest.mark.parametrize(
    "data",
    [(2**40).to_bytes(8, "little") + HUGE, len(HUGE).to_bytes(8, "little") + HUGE, b"", b"\0" * 7, b"\x80\x02."],
    ids=["a huge header", "a huge tensor", "nothing", "less than a length", "a pickle"],
)
def test_a_hostile_file_with_a_right_checksum_is_refused_without_a_large_allocation(tmp_path: Path, data: bytes) -> None:
    file = save(tmp_path, "a", 1.0) / "rank-00000-of-00001.safetensors"
    file.write_bytes(data)
    described = {"name": file.name, "bytes": len(data), "checksum": checksum(file, "xxh3_128")}
    resealed(file.parent, lambda body: body.update(files=[described], tensors={}, values={}, rank_values=[{}]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert f"{file.name} is no safetensors file" in refused(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_the_newest_good_one_is_loaded_and_each_worse_one_named_in_one_line(tmp_path: Path) -> None:
    for mark in range(4):
        save(tmp_path, f"step-{mark}", float(mark))
    (tmp_path / "step-3" / "rank-00000-of-00001.safetensors").unlink()
    (tmp_path / "step-2" / NAME).write_bytes(b"{}")
    saved = load(tmp_path)
    assert mark_of(saved) == 1.0
    (note,) = saved.notes
    assert note.startswith("loaded step-1, the newest checkpoint that can be: ")
    assert "step-2 cannot (manifest.json" in note
    assert "step-3 cannot (rank-00000-of-00001.safetensors is missing)" in note
    assert "\n" not in note


def test_where_none_is_good_each_is_named(tmp_path: Path) -> None:
    for tag in ("a", "b"):
        (save(tmp_path, tag, 1.0) / NAME).unlink()
    message = refused(tmp_path, None)
    assert "a: manifest.json is missing" in message
    assert "b: manifest.json is missing" in message


def test_a_flipped_generation_does_not_hide_the_newest(two: Path) -> None:
    ranks.run(2, on_ranks.save, two, "b", 2.0)
    text = (two / "b" / NAME).read_bytes()
    (two / "b" / NAME).write_bytes(text.replace(b'"generation": 2', b'"generation": 0'))
    saved = load(two)
    assert saved.tag == "a"
    assert "b cannot (manifest.json does not match its checksum)" in saved.notes[0]


def test_what_disappears_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, "a", 1.0)
    saved = load(tmp_path)
    saved._files.clear()
    (path / "rank-00000-of-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"rank-00000-of-00001\.safetensors could be read when it was opened"):
        saved.read("model/weight")


def folder_with(*names: str) -> Callable[[Path], tuple[Path, str | None]]:
    def make(path: Path) -> tuple[Path, str | None]:
        for name in names:
            (path / name).write_bytes(b"PK\x03\x04")
        return path, None

    return make


def saved_in(path: Path) -> Path:
    for mark in (1.0, 2.0):
        save(path, f"step-{mark:.0f}", mark)
    return path


def foreign(path: Path) -> Path:
    path.mkdir()
    save_file({"x": torch.ones(1)}, path / "model.safetensors")
    return path


WRONG: dict[str, tuple[Callable[[Path], tuple[Path, str | None]], str]] = {
    "no folder": (lambda path: (path / "none", None), "there is no such folder"),
    "an empty folder": (folder_with(), "it is empty"),
    "a foreign folder": (folder_with("a.txt", "b.txt"), "it holds no checkpoint of restoke, but a.txt, b.txt"),
    "a folder of Stoke's": (folder_with("stoke-x-backward-step-3.pt"), "restoke.checkpoint.read_stoke"),
    "a file of Stoke's": (lambda path: (folder_with("old.pt")(path)[0] / "old.pt", None), "restoke.checkpoint.read_stoke"),
    "a torch file of any name": (lambda path: (folder_with("old")(path)[0] / "old", None), "runs code from the file"),
    "a tag that is a file of Stoke's": (
        lambda path: (folder_with("old.pt")(path)[0], "old.pt"),
        "restoke.checkpoint.read_stoke",
    ),
    "a text file": (lambda path: (Path(__file__), None), "it is a single file"),
    "a mistyped tag": (lambda path: (saved_in(path), "stop-2"), "did you mean 'step-2'"),
    "a tag like no other": (lambda path: (saved_in(path), "best"), "one of: step-1, step-2"),
    "a tag of nothing": (lambda path: (path, "best"), "it is empty"),
    "a tag that is foreign": (
        lambda path: (foreign(saved_in(path) / "x").parent, "x"),
        "what is there is no checkpoint of restoke",
    ),
    "a checkpoint itself": (lambda path: (saved_in(path) / "step-1", None), "tag='step-1'"),
    "a way out": (lambda path: (saved_in(path), "../x"), "has no such checkpoint"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_checkpoint_is_told_what_it_is(tmp_path: Path, case: str) -> None:
    make, why = WRONG[case]
    assert why in refused(*make(tmp_path))


def test_what_is_damaged_is_not_listed_as_good(two: Path) -> None:
    (two / "a" / FILES[2]).unlink()
    (entry,) = checkpoint.listing(two, verify=True)
    assert (entry.good, entry.fault) == (False, f"{FILES[2]} is missing")
