"""Which checkpoint is loaded, and what a folder without one is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from restoke.checkpoint.manifest import NAME
from restoke.errors import CheckpointError
from tests.checkpoint.states import load, mark_of, save


def refused(folder: Path, tag: str | None) -> str:
    with pytest.raises(CheckpointError) as error:
        load(folder, tag)
    assert error.value.problems[0].instead
    return str(error.value)


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
    "a tag that is a number": (lambda path: (saved_in(path), 2), "and so a text"),  # type: ignore[dict-item,return-value]
    "a way out": (lambda path: (saved_in(path), "../x"), "has no such checkpoint"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_checkpoint_is_told_what_it_is(tmp_path: Path, case: str) -> None:
    make, why = WRONG[case]
    assert why in refused(*make(tmp_path))
