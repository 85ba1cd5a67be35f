"""A rank's record survives the rank, whole."""

from __future__ import annotations

import os
from pathlib import Path

from restoke.launch.records import Record, path_of, read


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = Record(rank=3, phase="failed", code=7, error="E: ü", chain=("E: ü", "F"), traceback="a\nb")
    record.write(tmp_path)
    assert read(tmp_path, 3) == record
    assert record.pid == os.getpid()


def test_a_newer_record_replaces_the_older_and_leaves_nothing_else(tmp_path: Path) -> None:
    Record(rank=0).write(tmp_path)
    Record(rank=0, phase="finished").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [path_of(tmp_path, 0).name]
    found = read(tmp_path, 0)
    assert found is not None
    assert found.phase == "finished"


def test_a_rank_that_left_none_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, 0) is None
