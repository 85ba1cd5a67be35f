"""Folders of jobs: new ones are made, old ones of our own are removed, nothing else is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from restoke.errors import LaunchError
from restoke.launch.logs import KEPT, MARK, new_folder


def test_the_newest_folders_are_kept_and_nothing_foreign_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    os.utime(tmp_path / "mine", (0, 0))
    for age in range(KEPT + 3):
        old = tmp_path / f"job-{age}"
        old.mkdir()
        (old / MARK).touch()
        os.utime(old, (1000 - age, 1000 - age))
    new = new_folder(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mine", new.name, *(f"job-{age}" for age in range(KEPT - 1))}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=re.escape("log-dir=")):
        new_folder(tmp_path / "file")
