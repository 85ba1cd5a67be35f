"""Where power fails and all that was not synced is lost, wholly the old or wholly the new generation is there; and it stays."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import saves, warm
from tests.faults.saves import NEW, NEXT, OLD, Seen, replacing
from tests.faults.trials import Trial, recorded, unplugged

CASES = [(tag, keep, ranks) for ranks in (1, 2) for tag in ("new", "old") for keep in (None, 1)]
USUAL = [case if case[1:] != (None, 2) else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


def wrong(seen: list[tuple[int, Seen | str]]) -> list[tuple[int, Seen | str]]:
    """What is neither generation as a whole, and what is not the new one though the save had returned."""
    last = seen[-1][0]

    def right(count: int, it: Seen | str) -> bool:
        if isinstance(it, str) or it.notes or (it.after, it.left) != ({NEXT}, {"next"}):
            return False
        return it.newest == {NEW} or (it.newest == {OLD} and count < last)

    return [(count, it) for count, it in seen if not right(count, it)]


@pytest.mark.parametrize(("tag", "keep", "ranks"), USUAL)
def test_the_old_or_the_new_generation_is_left_and_the_new_one_once_it_is_saved(
    folder: Path, tag: str, keep: int | None, ranks: int
) -> None:
    seen = warm.call(unplugged, replacing(tag, keep, ranks), folder)
    assert wrong(seen) == []
    assert len(seen) > 30
    assert {OLD} in [it.newest for _, it in seen]


def test_of_the_first_save_ever_nothing_or_all_is_left(folder: Path) -> None:
    seen = warm.call(unplugged, Trial(saves.nothing, partial(saves.saved, tag="first", keep=None), saves.look), folder)
    found = [it if isinstance(it, str) else it.newest for _, it in seen]
    assert all(it == {NEW} or "it is empty" in it for it in found), found
    assert found[-1] == {NEW}


def test_each_sync_that_makes_the_new_generation_last_is_missed_when_it_is_left_out(folder: Path) -> None:
    trial = replacing("new", None, 1)
    (folder / "whole").mkdir()
    done = warm.call(recorded, trial, folder / "whole").together
    missed = []
    for number, operation in enumerate(done):
        if operation.kind == "sync":
            (folder / str(number)).mkdir()
            if wrong(warm.call(unplugged, trial, folder / str(number), number)):
                missed.append(operation.path.rpartition("/")[2])
    assert [name[:5] for name in missed] == ["rank-", "manif", ".tmp-", "."]
