"""Ranks meet through the store before a verb that only all together can do: one that does not come is named, in time."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

from restoke.errors import SessionError
from restoke.said import say
from restoke.world import World

_HELD = [0]  # meetings so far, alike on all ranks
PATIENCE = 30.0  # seconds until it is said for whom this rank waits
TIMEOUT = 600.0  # seconds until it gives up


def meet(verb: str, world: World, timeout: float = TIMEOUT) -> None:
    """Return when every rank is here.

    Raises:
        SessionError: some rank did not come within the time-out, or is elsewhere.
    """
    if world.size == 1:
        return
    store: Any = dist.distributed_c10d._get_default_store()
    prefix = f"restoke/meet/{_HELD[0]}"
    store.set(f"{prefix}/{world.rank}", verb)
    keys = [f"{prefix}/{rank}" for rank in range(world.size)]
    if not _wait(store, keys, min(PATIENCE, timeout)):
        if timeout > PATIENCE:
            say(f"{verb}: rank {world.rank} waits for {_missing(store, keys)}")
        if timeout <= PATIENCE or not _wait(store, keys, timeout - PATIENCE):
            why = f"{_missing(store, keys)} did not call it within {timeout:g} s"
            store.delete_key(keys[world.rank])  # this meeting is still to come
            raise SessionError.of(
                verb, f"rank {world.rank} alone", why, f"call {verb} on every rank, outside of is_main_process"
            )
    _HELD[0] += 1
    said = {rank: store.get(key).decode() for rank, key in enumerate(keys)}
    other = next((rank for rank, told in said.items() if told != verb), None)
    if other is not None:
        why = f"rank {other} is in {said[other]}"
        raise SessionError.of(verb, f"rank {world.rank}", why, "the same calls in the same order on every rank")


def _wait(store: Any, keys: list[str], seconds: float) -> bool:
    try:
        store.wait(keys, datetime.timedelta(seconds=seconds))
    except RuntimeError:  # torch's store says so that the time is over
        return False
    return True


def _missing(store: Any, keys: list[str]) -> str:
    gone = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
    return f"rank {', '.join(gone)}" if len(gone) == 1 else f"ranks {', '.join(gone)}"
