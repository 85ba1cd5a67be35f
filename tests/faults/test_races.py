"""A reader gets the old generation or the new one, whatever a writer does meanwhile."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import races, warm
from tests.faults.conftest import in_memory
from tests.faults.races import Race
from tests.faults.saves import NEW, OLD


@pytest.fixture(scope="module")
def moments() -> Iterator[int]:
    """How many a reader has."""
    with in_memory() as path:
        yield warm.call(races.moments, Path(path))


@pytest.mark.parametrize("tag", ["old", "new"])
def test_before_each_operation_of_a_writer_the_old_or_the_new_generation_loads(folder: Path, tag: str) -> None:
    seen = warm.call(races.visited, folder, tag)
    assert all(marks in ({OLD}, {NEW}) for _, marks in seen), seen
    assert (seen[0][1], seen[-1][1]) == ({OLD}, {NEW})
    assert len(seen) > 12


def some(moments: int, count: int) -> list[int]:
    """Moments that are spread over all of them."""
    chance = random.Random(count)
    step = moments / count
    return [min(int(step * (i + chance.random())), moments - 1) for i in range(count)]


@pytest.mark.parametrize("tag", ["old", "new"])
def test_a_reader_during_whose_work_another_generation_replaces_the_old_one_reads_one_of_them(
    folder: Path, moments: int, tag: str
) -> None:
    seen = warm.call(races.found_in, folder, [Race(tag, at) for at in some(moments, 60)])
    assert all(marks in ({OLD}, {NEW}) for marks in seen), seen
    assert {OLD} in seen
    assert {NEW} in seen


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tag", ["old", "new"])
def test_at_any_moment(folder: Path, moments: int, tag: str) -> None:
    for first in range(0, moments, 200):
        seen = warm.call(
            races.found_in, folder, [Race(tag, at) for at in range(first, min(first + 200, moments))], patience=160
        )
        assert all(marks in ({OLD}, {NEW}) for marks in seen), (first, seen)
        shutil.rmtree(folder / "start")


def test_a_reader_during_whose_work_a_writer_dies_reads_one_of_them(folder: Path, moments: int) -> None:
    stops = range(10, 19)  # from the last of the new files to the removal of the old ones
    seen = warm.call(races.found_in, folder, [Race("old", at, stop) for stop in stops for at in some(moments, 6)])
    assert all(marks in ({OLD}, {NEW}) for marks in seen), seen


def test_a_file_that_is_opened_late_is_refused_where_it_is_of_another_generation(folder: Path, moments: int) -> None:
    seen = warm.call(races.found_in, folder, [Race("old", at, late=True) for at in some(moments, 60)])
    refused = [marks for marks in seen if isinstance(marks, str)]
    assert all(marks in ({OLD}, {NEW}) for marks in seen if not isinstance(marks, str)), seen
    assert refused
    assert all("cannot any more (another save has replaced it). Instead: load again." in why for why in refused), refused
