"""The census: the bytes that sessions hold now, by class, each storage once. It runs no operator and makes no tensor."""

from __future__ import annotations

from collections import Counter

from attrs import frozen
from torch import UntypedStorage

from restoke.held import Held
from restoke.memory.storages import storages, walk
from restoke.session import Session


@frozen
class Census:
    """What sessions hold: on their device, and elsewhere (what is offloaded waits in host memory)."""

    held: Held
    elsewhere: Held


def census(*sessions: Session) -> Census:
    """What these sessions hold on this rank at this moment. Not a collective.

    Activations and what a script holds besides cannot be found from a session: `measure_memory` follows those, too.

    Raises:
        SessionError: one of them has no model yet.
    """
    found: dict[int, tuple[UntypedStorage, str]] = {}
    for session in sessions:
        for kind, tensor in walk(session.parts):
            for storage in storages(tensor):
                found.setdefault(storage._cdata, (storage, kind))
    devices = {session.world.device.type for session in sessions}
    here, there = Counter[str](), Counter[str]()
    for storage, kind in found.values():
        (here if storage.device.type in devices else there)[kind] += storage.nbytes()
    return Census(Held.of(here), Held.of(there))
