"""The protocol of a tracker, and any object with `log` as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from restoke.errors import SpecError


class Tracker(ABC):
    """What numbers are logged to. `start` is called once, on the ranks that log; `finish` at the end of training.

    Attributes:
        name: what it is asked for by.
        requires_logging_directory: whether its class is made with a folder after the name of the run.
        main_process_only: whether rank 0 alone logs.
    """

    name: str
    requires_logging_directory: bool = False
    main_process_only: bool = True

    @property
    def tracker(self) -> Any:
        """What it logs with: the run, or the writer, of its library."""
        return self

    def start(self) -> None:  # noqa: B027 - most have nothing to do
        """Begin."""

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing to do
        """Keep the settings of the run."""

    @abstractmethod
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log these values, at this step."""

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images. Raises SpecError where it cannot."""
        raise SpecError.of("log_images", self.name, "this tracker logs no images", "a tracker that has log_images")

    def finish(self) -> None:  # noqa: B027 - most have nothing to do
        """All is logged."""


@final
class Plain(Tracker):
    """An object that has a method `log(values, step=...)`, and may have `store_init_configuration` and `finish`."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.name = str(getattr(target, "name", type(target).__name__))
        self.main_process_only = bool(getattr(target, "main_process_only", True))

    @property
    def tracker(self) -> Any:
        return self.target

    def start(self) -> None:
        self._tell("start")

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self._tell("store_init_configuration", values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.target.log(values, step=step, **kwargs)

    def finish(self) -> None:
        self._tell("finish")

    def _tell(self, verb: str, *args: Any) -> None:
        told = getattr(self.target, verb, None)
        if callable(told):
            told(*args)


def as_tracker(target: Any) -> Tracker:
    """The object as a tracker. Raises SpecError: it has no method `log`."""
    if isinstance(target, Tracker):
        return target
    if not callable(getattr(target, "log", None)):
        why = f"a {type(target).__name__} has no method log"
        raise SpecError.of("log_with", type(target).__name__, why, "a tracker's name, or an object with log(values, step)")
    return Plain(target)
