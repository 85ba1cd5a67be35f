"""Saving and loading as Stoke's scripts do it: what the verbs count and follow goes with the session's checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from restoke import checkpoint, comm
from restoke.errors import CheckpointError, SessionError
from restoke.facades.stoke.track import Track
from restoke.said import say
from restoke.session import Session


@final
class Progress:
    """What a Stoke object counts and follows beside its session: the backwards, and each rank's own losses."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self.backward_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Collective, for the losses' means over ranks."""
        return {"backward_steps": self.backward_steps, "losses": self._track.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._track.load_state_dict(state["losses"])
        self.backward_steps = state["backward_steps"]


def save(session: Session, path: str | os.PathLike[str], tag: str, create: bool, extras: Any) -> tuple[str, str]:
    """Write a checkpoint; returns where, and its tag, which is rank 0's. Every rank calls this."""
    # rank 0 decides for all: a tag made from the clock differs by rank, and so may what each sees of the folder
    tag, missing = comm.broadcast_json([tag, not create and not Path(path).is_dir()], session.world)
    if missing:
        raise CheckpointError.of("path", str(path), "there is no such folder", "create_directory=True, or make it")
    return str(path), session.save(path, tag, extras)


def load_stoke(session: Session, progress: Progress, path: Path, strict: bool) -> dict[str, Any]:
    """Restore one of Stoke's own files, which runs code from it, and return its extras. Every rank reads it."""
    parts = session.parts
    names = [name for name, _ in parts.module.named_parameters()]
    saved = checkpoint.read_stoke(path, names, type(parts.optimizer).__name__)
    notes = parts.state.restore(saved, strict)
    counters, scale = saved.values["counters"], saved.values["scaler"]
    session.steps, progress.backward_steps = counters["optimizer_step"], counters["backward_step"]
    session.zero_grads()
    if counters["grad_accum_step"]:
        notes.append(f"{path.name} was saved within a window of micro-batches, without its gradients: it begins anew")
    if session.scaler is not None and scale is None:
        notes.append(f"{path.name} has no loss scale: the scale starts anew")
    elif session.scaler is not None:
        session.scaler.torch.load_state_dict(scale)
    for note in notes if session.world.is_main else ():
        say(note)
    extras: dict[str, Any] = saved.values["extras"]
    return extras


def refuse_between(backward_is_due: bool, verb: str) -> None:
    """Raises SessionError between `backward` and `step`: a checkpoint would lack this micro-batch, a flush not count it."""
    if not backward_is_due:
        why = "it would lose the gradients of this micro-batch, which step() has not seen"
        raise SessionError.of(verb, "between backward and step", why, f"{verb} after step()")
