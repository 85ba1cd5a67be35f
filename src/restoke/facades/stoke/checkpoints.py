"""Saving and loading as Stoke's scripts do it: what the verbs count and follow goes with the session's checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch

from restoke import checkpoint, comm
from restoke.errors import CheckpointError, SessionError
from restoke.facades.stoke.losses import Losses
from restoke.said import say
from restoke.session import Session
from restoke.world import World


@final
class Progress:
    """What a Stoke object counts and follows beside its session: the backwards, and each rank's own losses."""

    def __init__(self, losses: Losses, world: World) -> None:
        self._losses, self._world = losses, world
        self.backward_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """This rank's losses, and the mean over ranks. Collective: only a checkpoint asks for it, on every rank."""
        losses = self._losses
        own = torch.stack([losses.last, losses.ema, losses.total]).reshape(3, -1)
        begins = [losses.ema_begins, losses.window_begins]
        mean = comm.mean(own, self._world)
        return {
            "backward_steps": self.backward_steps,
            "own": own.tolist(),
            "mean": mean.tolist(),
            "begins": begins,
            "ranks": self._world.size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Each rank's own losses; at another world size the mean of all, which averages to the same."""
        losses = self._losses
        saved = torch.tensor(state["own" if state["ranks"] == self._world.size else "mean"], dtype=losses.last.dtype)
        if saved.shape[-1] != len(losses.functions):
            why = f"this run has {len(losses.functions)}"
            raise CheckpointError.of("loss", saved.shape[-1], why, "give the loss functions that it was saved with")
        for tensor, values in zip((losses.last, losses.ema, losses.total), saved, strict=True):
            tensor.copy_(values.reshape(tensor.shape))
        losses.ema_begins, losses.window_begins = state["begins"]
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


def refuse_between(backward_is_due: bool) -> None:
    """Raises SessionError between `backward` and `step`, where a checkpoint would lack a micro-batch."""
    if not backward_is_due:
        why = "it would lose the gradients of this micro-batch, which step() has not seen"
        raise SessionError.of("save", "between backward and step", why, "save after step()")
