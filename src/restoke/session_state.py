"""All that a session saves beside its parts' state: scaler, counters, schedulers, generators, a half-filled window."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from restoke import checkpoint
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk, Saved
from restoke.said import say
from restoke.seeds import rng_state, seed_all, set_rng_state

if TYPE_CHECKING:
    from restoke.session import Session


def capture(session: Session, extras: Mapping[str, Any]) -> Captured:
    """What this rank holds of the session's whole state."""
    if session.averages is not None:
        session.averages.refuse_inside("save")
    captured = session.parts.state.capture()
    if session.averages is not None:
        session.averages.capture(captured)
    scaler = session.scaler
    captured.values["session"] = {
        "steps": session.steps,
        "skipped": session.skipped,
        "window": [session.windows.done, session.windows.length],
        "scaler": None if scaler is None else scaler.torch.state_dict(),
        "schedulers": [_scheduler_state(scheduler) for scheduler in session.schedulers],
        "scheduler_classes": _classes(session.schedulers),
    }
    captured.values["rank/registered"] = {name: thing.state_dict() for name, thing in session.registered.items()}
    captured.values["extras"] = dict(extras)
    captured.values["rank/rng"] = rng_state(session.world.device)
    if session.windows.done and session.parts.own_grads:
        _capture_gradients(session, captured)
    elif session.windows.done:
        session.parts.reduce_grads()
        session.parts.average_shards()
        _capture_mean(session, captured, _gradients(session))
    if session.windows.done or session.parts.local_buffers:
        _capture_own(session, captured, "buffer", dict(session.parts.module.named_buffers()))
    return captured


class ByRank(Protocol):
    """Looked up by rank."""

    def __getitem__(self, rank: int, /) -> Mapping[str, Any]: ...


class Kept(Saved, Protocol):
    """A checkpoint as a session needs it."""

    notes: list[str]  # lines to be said

    @property
    def world_size(self) -> int:
        """How many ranks saved it."""

    @property
    def rank_values(self) -> ByRank:
        """What each rank kept under `rank/`."""


def restore(session: Session, saved: Kept, strict: bool) -> dict[str, Any]:
    """Put it all back; what could not be is said on stderr by the main rank, and refused where `strict`."""
    if session.averages is not None:
        session.averages.refuse_inside("load")
    state = _of_one(saved)
    unlike = _unlike_schedulers(session, state, strict)
    left = unlike + _unlike_registered(session, saved, strict)  # what is refused is refused before anything is changed
    notes = list(saved.notes) + session.parts.state.restore(saved, strict) + left
    notes += _restore_averages(session, saved)
    session.steps, session.skipped = state["steps"], state["skipped"]
    notes += _restore_scaler(session, state["scaler"])
    for scheduler, kept in zip(session.schedulers, state["schedulers"], strict=True) if not unlike else ():
        scheduler.load_state_dict(kept)
    states = _registered(session, saved)
    for name in states.keys() & session.registered.keys():
        session.registered[name].load_state_dict(states[name])
    session.parts.abandon()
    session.parts.stepper.clear()
    session.windows.done, session.windows.length = state["window"]
    if session.windows.done:
        _restore_gradients(session, saved)
    _restore_buffers(session, saved)
    _restore_rng(session, saved)
    if session.world.is_main:
        for note in notes:
            say(note)
    extras: dict[str, Any] = saved.values["extras"]
    return extras


def save(session: Session, folder: Path, tag: str, extras: Mapping[str, Any], keep: int | None, wait: bool) -> str:
    """Write the session's checkpoint, or begin to; returns its tag."""
    if not isinstance(extras, Mapping):
        raise CheckpointError.of("extras", type(extras).__name__, "it is not a mapping of names to values", "{'epoch': 3}")
    meta = {"spec": session.spec.declared(), "steps": session.steps, "torch": str(torch.__version__)}
    if session.saver is not None:
        session.saver.finish()
    if wait:
        return checkpoint.write(folder, tag, capture(session, extras), session.world, meta=meta, keep=keep).name
    if session.saver is None:
        from restoke.checkpoint.background import Saver

        session.saver = Saver(session.world)
    return session.saver.start(folder, tag, capture(session, extras), meta=meta, keep=keep).name


def load(session: Session, folder: Path, tag: str | None, strict: bool) -> dict[str, Any]:
    """Read and restore a checkpoint; returns its extras."""
    if session.saver is not None:
        session.saver.join()
    return restore(session, checkpoint.read(folder, tag, session.world), strict)


def _gradients(session: Session) -> dict[str, Tensor]:
    return {name: p.grad for name, p in session.parts.module.named_parameters() if p.grad is not None}


def _capture_gradients(session: Session, captured: Captured) -> None:
    """Each rank's own; of shards, the mean over the ranks that hold the same ones."""
    session.parts.average_shards()
    named, grads = dict(session.parts.module.named_parameters()), _gradients(session)
    cut = {name: grads.pop(name) for name in list(grads) if session.parts.layout.cuts(named[name])}
    _capture_own(session, captured, "gradient", grads)
    _capture_mean(session, captured, cut)


def _capture_mean(session: Session, captured: Captured, grads: dict[str, Tensor]) -> None:
    """Gradients that are laid out as their parameters."""
    named, layout = dict(session.parts.module.named_parameters()), session.parts.layout
    for name, grad in grads.items():
        captured.chunks[f"gradient/mean/{name}"] = Chunk(layout.local(grad.detach()), *layout.place(named[name]))


def _capture_own(session: Session, captured: Captured, kind: str, tensors: dict[str, Tensor]) -> None:
    """Tensors that are each rank's own: within a window its gradients, and what batch norm counted since the last forward."""
    for name, tensor in tensors.items():
        captured.chunks[f"{kind}/{session.world.rank}/{name}"] = Chunk.whole(tensor)


def _restore_buffers(session: Session, saved: Kept) -> None:
    """Each rank's own, where they were saved; else they are rank 0's already."""
    keys = set(saved.keys())
    with torch.no_grad():
        for name, buffer in session.parts.module.named_buffers():
            key = f"buffer/{session.world.rank}/{name}"
            if key in keys and not session.parts.layout.cuts(buffer):
                buffer.copy_(saved.read(key))


def _restore_gradients(session: Session, saved: Kept) -> None:
    """Each rank's own; at another world size, or in shards, the mean of all, which averages to the same at the window's end."""
    layout, keys = session.parts.layout, set(saved.keys())
    own = saved.world_size == session.world.size and session.parts.own_grads
    ranks = [session.world.rank] if own else list(range(saved.world_size))
    session.parts.reshard()
    for name, parameter in session.parts.module.named_parameters():
        found = [key for rank in ranks if (key := f"gradient/{rank}/{name}") in keys]
        mean = [key for key in (f"gradient/mean/{name}",) if key in keys]
        if parts := [layout.read(saved, key, parameter) for key in mean or found]:
            total = torch.stack(parts).sum(dim=0) / len(ranks) if len(ranks) > 1 and not mean else parts[0]
            parameter.grad = layout.like(total.to(parameter.dtype), parameter)


def _restore_averages(session: Session, saved: Kept) -> list[str]:
    if session.averages is not None:
        return session.averages.restore(saved)
    has = any(key.startswith("ema/") for key in saved.keys())  # noqa: SIM118
    return ["the checkpoint has averaged weights, and this run keeps none (ema=)"] if has else []


def _restore_scaler(session: Session, state: dict[str, Any] | None) -> list[str]:
    if session.scaler is None:
        return []
    if state is None:
        return ["the checkpoint has no loss scale (it was not saved in fp16): the scale starts anew"]
    session.scaler.torch.load_state_dict(state)
    return []


def _scheduler_state(scheduler: Any) -> dict[str, Any]:
    """Without the functions and objects that schedulers put into their state, which the script makes again."""
    return {key: value for key, value in scheduler.state_dict().items() if not callable(value)}


def _of_one(saved: Kept) -> dict[str, Any]:
    """What was kept of the session itself. Raises CheckpointError where it is not the checkpoint of one."""
    if "session" not in saved.values:
        got = ", ".join(saved.values.get("sessions", ())) or "no session"
        raise CheckpointError.of(
            "checkpoint", got, "it holds no single session", "restoke.resume for several, or another folder"
        )
    state: dict[str, Any] = saved.values["session"]
    return state


def _classes(schedulers: list[Any]) -> list[str]:
    return [type(scheduler).__name__ for scheduler in schedulers]


def _unlike_schedulers(session: Session, state: dict[str, Any], strict: bool) -> list[str]:
    """Why none is restored, if so. Raises CheckpointError for it where `strict`."""
    theirs, mine = state["scheduler_classes"], _classes(session.schedulers)
    if theirs != mine:
        got, why = ", ".join(theirs) or "none", f"this run has {', '.join(mine) or 'none'}"
        if strict:
            raise CheckpointError.of("schedulers", got, why, "build the schedulers that it was saved with, or strict=False")
        return [f"schedulers: the checkpoint has {got}, {why}: none was restored"]
    groups = len(session.parts.optimizer.param_groups)
    if any(len(each.get("base_lrs", groups * [0])) != groups for each in state["schedulers"]) and not strict:
        return ["schedulers: the checkpoint has them for another number of parameter groups: none was restored"]
    return []


def _registered(session: Session, saved: Kept) -> Mapping[str, Any]:
    """Each rank's own; at another world size rank 0's."""
    rank = session.world.rank if saved.world_size == session.world.size else 0
    states: Mapping[str, Any] = saved.rank_values[rank]["registered"]
    return states


def _unlike_registered(session: Session, saved: Kept, strict: bool) -> list[str]:
    """What only one side has. Raises CheckpointError for it where `strict`."""
    states, notes = _registered(session, saved), []
    for name in sorted(states.keys() ^ session.registered.keys()):
        side = "this run registers no such object" if name in states else "the checkpoint has none"
        if strict:
            raise CheckpointError.of("registered", name, side, "register what it was saved with, or strict=False")
        notes.append(f"registered {name}: {side}")
    return notes


def _restore_rng(session: Session, saved: Kept) -> None:
    """Each rank's own generators; at another world size they begin anew from the seed and the step, where there is a seed."""
    if saved.world_size == session.world.size:
        set_rng_state(saved.rank_values[session.world.rank]["rng"], session.world.device)
    elif session.spec.seed is not None:
        seed_all(session.spec.seed + session.steps, 1 + session.world.data_rank)
