"""Hostile files run no code and take no memory: each is refused with its reason, and the good generation loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from restoke import checkpoint
from restoke.errors import CheckpointError
from tests.checkpoint.states import load, save
from tests.faults import corpus, hostile, warm
from tests.faults.hostile import Report
from tests.faults.saves import OLD


def of_all(folder: Path, which: str) -> list[Report]:
    return hostile.reports(folder, list(vars(corpus)[which].values()))


def checked(name: str, report: Report) -> list[str]:
    """What is wrong with how it was met."""
    wrong = {
        "it was not refused": report.kind != "CheckpointError",
        "the refusal lacks a part": len(report.parts) != 4 or not all(report.parts),
        "no reason is given, but a traceback": "traceback" in report.message,
        "the refusal is too long": len(report.message) > 1000,
        "memory ran out": "memory" in report.message.lower(),
        f"it took {report.grown} bytes": report.grown > hostile.ROOM // 2,
        f"it took {report.seconds:.1f} s": report.seconds > 10,
        f"code was run: {report.events}": bool(report.events) or report.went_off,
    }
    return [f"{name}: {what}: {report.message[:300]}" for what, so in wrong.items() if so]


def test_each_hostile_file_is_refused_and_the_good_generation_loads(folder: Path) -> None:
    found = dict(zip(corpus.EARLY, warm.call(of_all, folder, "EARLY"), strict=True))
    wrong = [line for name, report in found.items() for line in checked(name, report)]
    assert wrong == []
    other = {name: (report.marks, report.notes) for name, report in found.items() if report.marks != OLD}
    assert other == {}
    unsaid = {name: report.notes for name, report in found.items() if "bad cannot (" not in "".join(report.notes)}
    assert unsaid == {}
    assert len(found) > 120


def test_hostile_values_of_a_rank_are_refused_when_they_are_asked_for(folder: Path) -> None:
    found = dict(zip(corpus.LATE, warm.call(of_all, folder, "LATE"), strict=True))
    assert [line for name, report in found.items() for line in checked(name, report)] == []


def good(folder: Path) -> list[Report]:
    return hostile.reports(folder, [lambda path: None, hostile.changing(lambda body: None)])


def test_what_nobody_spoilt_is_not_refused(folder: Path) -> None:
    assert [(report.kind, report.marks, report.notes) for report in warm.call(good, folder)] == [("", 0.0, [])] * 2


def pickle_is_loaded(path: Path) -> None:
    import pickle

    pickle.loads(hostile.pickled(path))


def caught(folder: Path) -> list[Report]:
    """Code that runs while a checkpoint is loaded."""
    checkpoint.read = lambda *args: pickle_is_loaded(folder / "0" / "bad")  # type: ignore[assignment]
    try:
        return hostile.reports(folder, [lambda path: None])
    finally:
        del checkpoint.read


def test_code_that_runs_is_noticed(folder: Path) -> None:
    (report,) = warm.call(caught, folder)
    assert report.went_off
    assert "pickle.find_class" in report.events


def test_a_link_to_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "far", "a", OLD)
    save(tmp_path / "run", "b", OLD)
    (tmp_path / "run" / "z").symlink_to(tmp_path / "far" / "a")
    assert [entry.tag for entry in checkpoint.listing(tmp_path / "run")] == ["b"]
    assert load(tmp_path / "run").notes == []
    with pytest.raises(CheckpointError, match="no checkpoint of restoke"):
        load(tmp_path / "run", "z")
