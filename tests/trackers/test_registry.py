"""Trackers by name, and objects that are trackers by what they can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from restoke.errors import SpecError
from restoke.trackers import Plain, Tracker, as_tracker, names, register, tracker_class


class Mine(Tracker):
    name = "mine"

    def __init__(self, project: str) -> None:
        self.project = project

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Nothing."""


def test_a_registered_class_is_found_by_name_and_imported_when_asked_for() -> None:
    register("mine", f"{__name__}:Mine")
    register("lost", "no.such.module:Tracker")
    assert {"lost", "mine"} <= set(names())
    assert tracker_class("mine")("run").tracker.project == "run"
    with pytest.raises(SpecError, match="its library is missing"):
        tracker_class("lost")
    with pytest.raises(SpecError, match="did you mean 'mine'"):
        tracker_class("mime")


def test_an_object_that_logs_is_one_and_any_other_is_refused() -> None:
    own = Mine("run")
    assert as_tracker(own) is own
    calls: list[Any] = []

    class Plainly:
        def log(self, values: Any, step: int | None = None) -> None:
            calls.append((values, step))

        def finish(self) -> None:
            calls.append("finished")

    tracker = as_tracker(Plainly())
    assert isinstance(tracker, Plain)
    tracker.start()
    tracker.store_init_configuration({"lr": 1})
    tracker.log({"a": 1}, step=2)
    tracker.finish()
    assert calls == [({"a": 1}, 2), "finished"]
    with pytest.raises(SpecError, match="no method log"):
        as_tracker(3)
    with pytest.raises(SpecError, match="logs no images"):
        own.log_images({})
