"""How a run ends that was asked to stop: all is saved, and the same command goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

RESUME = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, try again

_TOLD: list[Callable[[], None]] = []


@final
class Stopped(SystemExit):
    """Every rank has saved after the same optimizer step, and leaves with the exit code RESUME.

    `step` counts optimizer steps; the checkpoint is `folder/tag`.
    """

    def __init__(self, step: int, tag: str, folder: str) -> None:
        super().__init__(RESUME)
        self.step, self.tag, self.folder = step, tag, folder

    def __str__(self) -> str:
        return f"stopped at step {self.step} and saved {self.tag} in {self.folder}: the same command goes on from there"


def on_promise(call: Callable[[], None]) -> None:
    """Call this when the process promises to save and leave where it is asked to stop."""
    _TOLD.append(call)


def promise() -> None:
    """This process saves and leaves from here on."""
    for call in _TOLD:
        call()
