"""Several sessions in one checkpoint: each under its name, all as they were at one moment."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from attrs import define, field, frozen
from torch import Tensor

from restoke import checkpoint
from restoke.checkpoint.draft import OWN
from restoke.checkpoint.plan import RESERVED
from restoke.errors import CheckpointError, SessionError
from restoke.parts import Captured
from restoke.session import Session
from restoke.session_state import ByRank, capture, restore
from restoke.stopping.resuming import Extras, Whole, begin

NAME = re.compile(r"[A-Za-z_][\w-]{0,99}")
NAMES = "sessions"  # among the values: the names


def resume(
    folder: str | os.PathLike[str],
    sessions: Mapping[str, Session],
    *,
    every: int | None = None,
    keep: int | None = None,
    extras: Extras | None = None,
    strict: bool = True,
    signals: Iterable[str | int] | None = None,
) -> dict[str, Any]:
    """As `Session.resume`, for several sessions that are saved together: a GAN's two, say. Every rank calls this.

    Args:
        sessions: by the names that they have in the checkpoint. An iteration of the training loop ends with a step of the last
            one: where that has stepped, all of them are saved.

    Raises:
        SessionError: as `Session.resume`, or a session has no model.
        CheckpointError: as `Session.resume`, or the checkpoint is one of other sessions.
    """
    check(sessions)
    whole = Whole(
        last=list(sessions.values())[-1],
        save=lambda *args: save(sessions, *args),
        load=lambda folder, strict: load(sessions, folder, strict),
    )
    return begin(whole, folder, every=every, keep=keep, extras=extras, strict=strict, names=signals)


def check(sessions: Mapping[str, Session]) -> None:
    """Raises SessionError where they cannot be told apart in a checkpoint, or have no model."""
    given: Any = sessions
    if not isinstance(given, Mapping) or not given:
        why = "it names no session"
        raise SessionError.of("sessions", type(given).__name__, why, "{'critic': critic, 'generator': generator}")
    for name, session in given.items():
        if not isinstance(session, Session):
            why = f"a {type(session).__name__} is no Session"
            raise SessionError.of("sessions", name, why, "a restoke.Session, such as that of a Stoke object")
        if not NAME.fullmatch(name) or f"{name}/".startswith((OWN, *RESERVED)):
            raise SessionError.of("sessions", name, "it cannot begin the names in a checkpoint", "a name of letters")
        session.parts  # noqa: B018 - raises without a model


def save(sessions: Mapping[str, Session], folder: Path, tag: str, extras: Mapping[str, Any], keep: int | None) -> str:
    """Write all of them as one checkpoint; returns its tag. Every rank calls this."""
    if not isinstance(extras, Mapping):
        raise CheckpointError.of("extras", type(extras).__name__, "it is not a mapping of names to values", "{'epoch': 3}")
    whole = Captured(values={NAMES: list(sessions), "extras": dict(extras)})
    for name, session in sessions.items():
        if session.saver is not None:
            session.saver.finish()
        _add(whole, name, capture(session, {}))
    first = next(iter(sessions.values()))
    about = {name: {"spec": session.spec.declared(), "steps": session.steps} for name, session in sessions.items()}
    meta = {NAMES: about, "torch": str(torch.__version__)}
    return checkpoint.write(folder, tag, whole, first.world, meta=meta, keep=keep).name


def load(sessions: Mapping[str, Session], folder: Path, strict: bool, tag: str | None = None) -> dict[str, Any]:
    """Restore each of them, from the newest good checkpoint where no tag is given; returns its extras. Every rank calls this.

    Raises:
        CheckpointError: it is damaged, does not fit, or is one of other sessions.
    """
    opened = checkpoint.read(folder, tag, next(iter(sessions.values())).world)
    saved = opened.values.get(NAMES)
    if saved is None or set(saved) != set(sessions):
        got = "one session" if saved is None else ", ".join(saved)
        why = f"{opened.tag} holds another choice than {', '.join(sessions)}"
        raise CheckpointError.of("sessions", got, why, "the sessions that it was saved with, or another folder")
    notes = list(opened.notes)
    for name, session in sessions.items():
        restore(session, Part(opened, name, notes), strict)
        notes = []  # what is said of the whole is said once
    extras: dict[str, Any] = opened.values["extras"]
    return extras


def _add(whole: Captured, name: str, part: Captured) -> None:
    whole.chunks.update({f"{name}/{key}": chunk for key, chunk in part.chunks.items()})
    for key, value in part.values.items():
        own = key.startswith(OWN)
        whole.values[f"{OWN}{name}/{key.removeprefix(OWN)}" if own else f"{name}/{key}"] = value


@final
@define(eq=False)
class Part:
    """One session's share of an open checkpoint, as if it had been saved alone."""

    _opened: checkpoint.Opened
    _name: str
    notes: list[str]
    values: Mapping[str, Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.values = self._own(self._opened.values)

    @property
    def rank_values(self) -> ByRank:
        return OfRanks(self)

    def of_rank(self, rank: int) -> Mapping[str, Any]:
        return self._own(self._opened.rank_values[rank])

    @property
    def world_size(self) -> int:
        return self._opened.world_size

    def keys(self) -> Collection[str]:
        return list(self._own(dict.fromkeys(self._opened.keys())))

    def shape(self, key: str) -> tuple[int, ...]:
        return self._opened.shape(f"{self._name}/{key}")

    def dtype(self, key: str) -> torch.dtype:
        return self._opened.dtype(f"{self._name}/{key}")

    def read(self, key: str, offsets: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        return self._opened.read(f"{self._name}/{key}", offsets, shape)

    def _own(self, names: Mapping[str, Any]) -> dict[str, Any]:
        prefix = f"{self._name}/"
        return {name.removeprefix(prefix): value for name, value in names.items() if name.startswith(prefix)}


@final
@frozen(eq=False)
class OfRanks:
    """Decoded when asked for: a rank asks for its own alone."""

    _part: Part

    def __getitem__(self, rank: int, /) -> Mapping[str, Any]:
        return self._part.of_rank(rank)
