"""Trackers, as an Accelerator uses them: begun, logged to and finished on the ranks that log; and the profiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from restoke.errors import SessionError, SpecError, nearest
from restoke.facades.accelerate.declare import Handlers
from restoke.facades.accelerate.plugins import ProfileKwargs
from restoke.facades.accelerate.saving import Saving
from restoke.trackers import Tracker, as_tracker, names, tracker_class

GeneralTracker = Tracker


class Blank(Tracker):
    """Where nothing is logged: anything may be called on it."""

    name = "blank"

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Tracking(Saving):
    """Verbs that log. None is collective, but for the profiler's file and the end."""

    trackers: list[Tracker]
    log_with: list[Any]
    _handlers: Handlers

    def _read_trackers(self, log_with: Any) -> list[Any]:
        """The names and objects. Raises SpecError: one is neither a known name nor an object with `log`."""
        given = [] if log_with is None else list(log_with) if isinstance(log_with, list | tuple) else [log_with]
        found: list[Any] = []
        for item in given:
            if isinstance(item, str):
                found += names() if item == "all" else [str(item)]
            elif isinstance(item, type):
                found.append(item)
            else:
                found.append(as_tracker(item))
        return found

    def init_trackers(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Begin the trackers of `log_with`; `init_kwargs` are more keywords for each, by its name.

        Raises:
            SpecError: there is no such tracker, its library is missing, or it needs a folder and `project_dir` is not given.
        """
        self.trackers = []
        for item in self.log_with:
            tracker = item if isinstance(item, Tracker) else self._made(item, project_name, init_kwargs or {})
            if tracker is not None and (self.is_main_process or not tracker.main_process_only):
                self.trackers.append(tracker)
        for tracker in self.trackers:
            tracker.start()
            if config is not None:
                tracker.store_init_configuration(config)

    def _made(self, item: Any, project_name: str, init_kwargs: Mapping[str, Any]) -> Tracker | None:
        cls: Any = tracker_class(item) if isinstance(item, str) else item
        if cls.main_process_only and not self.is_main_process:
            return None
        keywords = init_kwargs.get(str(cls.name), {})
        if not cls.requires_logging_directory:
            made: Tracker = cls(project_name, **keywords)
            return made
        if self.logging_dir is None:
            raise SpecError.of("logging_dir", None, f"{cls.name} writes into a folder", "project_dir=, or ProjectConfiguration")
        tracker: Tracker = cls(project_name, self.logging_dir, **keywords)
        return tracker

    def log(
        self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Log to each tracker that this rank has; `log_kwargs` are more keywords for each, by its name."""
        for tracker in self.trackers:
            tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker of this name, or what it logs with; on ranks that log nothing, one that does nothing.

        Raises:
            SessionError: there is none.
        """
        found = next((tracker for tracker in self.trackers if tracker.name == name), None)
        if found is not None:
            return found.tracker if unwrap else found
        if not self.is_main_process:
            return Blank()
        known = [tracker.name for tracker in self.trackers]
        instead = nearest(name, known) if known else "log_with=, and init_trackers first"
        raise SessionError.of("get_tracker", name, "no tracker of this name was begun", instead)

    def end_training(self) -> None:
        """Finish the trackers, when all ranks are here. Every rank calls this."""
        for tracker in self.trackers:
            tracker.finish()
        self.wait_for_everyone()

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[Any]:
        """torch's profiler around the block; with `output_trace_dir` each rank writes `profile_RANK.json` there."""
        how = profile_handler or self._handlers.get(ProfileKwargs)
        with _profiler(how) as profiler:
            yield profiler
        if how.output_trace_dir is not None:
            folder = Path(how.output_trace_dir)
            folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(folder / f"profile_{self.process_index}.json"))
            self.wait_for_everyone()


def _profiler(how: ProfileKwargs) -> Any:
    known = {name.lower(): activity for name, activity in ProfilerActivity.__members__.items()}
    activities = None
    if how.activities is not None:
        unknown = [name for name in how.activities if name not in known]
        if unknown:
            raise SpecError.of("ProfileKwargs.activities", unknown[0], "there is no such activity", nearest(unknown[0], known))
        activities = [known[name] for name in how.activities]
    elif not torch.cuda.is_available():
        activities = [ProfilerActivity.CPU]
    return profile(
        activities=activities,
        schedule=None if how.schedule_option is None else schedule(**how.schedule_option),
        on_trace_ready=how.on_trace_ready,
        record_shapes=how.record_shapes,
        profile_memory=how.profile_memory,
        with_stack=how.with_stack,
        with_flops=how.with_flops,
        with_modules=how.with_modules,
    )
