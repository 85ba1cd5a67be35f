"""How ranks tell each other during a save: by collectives, or, beside training, by the store of the job."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, final

from attrs import frozen

from restoke.comm import broadcast_json, gather_json
from restoke.errors import CheckpointError
from restoke.world import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT = 2.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one, after which a rank is given up
SHORTEST, LONGEST = 0.002, 0.2  # seconds between two looks into the store, ...
PER_RANK = 0.0005  # ... the longest of them more for each rank, since one process answers all of them


class Messages(Protocol):
    """Every rank calls the same ones in the same order, with JSON values."""

    def gather(self, value: Any, world: World) -> list[Any]:
        """Every rank's value, in their order, on each."""

    def broadcast(self, value: Any, world: World) -> Any:
        """Rank 0's value on each."""


@final
@frozen
class Collectives:
    """For the thread that trains, whose collectives have one order on all ranks; and for a process alone, in any thread."""

    def gather(self, value: Any, world: World) -> list[Any]:
        return gather_json(value, world)

    def broadcast(self, value: Any, world: World) -> Any:
        return broadcast_json(value, world)

    def close(self, whole: bool = True) -> None:
        pass

    def forget(self) -> None:
        pass


COLLECTIVES = Collectives()


@final
class StoreMessages:
    """Of one save, called `name`, for any one thread. `store` is a client that nobody else waits with.

    A rank may take as long as it needs, while it gives signs of life.

    Raises:
        CheckpointError: a rank has given none for `SILENCE` seconds, or the store does not answer.
    """

    def __init__(self, store: Store, name: str, rank: int, size: int) -> None:
        self._store, self._name, self._rank, self._size = store, name, rank, size
        self._count = 0
        self._broken = False  # a rank was given up
        self._keys = [f"{name}/life/{rank}"]
        self._ended = threading.Event()
        self._signs = threading.Thread(target=self._give_signs, name="restoke-save-signs")
        self._signs.start()

    def gather(self, value: Any, world: World) -> list[Any]:
        return self._exchange(json.dumps(value), list(range(self._size)))

    def broadcast(self, value: Any, world: World) -> Any:
        return self._exchange(json.dumps(value), [0])[0]

    def close(self, whole: bool = True) -> None:
        """Part from the others. Rank 0, with which the store may go, waits for all to part, unless this was not the `whole`."""
        with contextlib.suppress(RuntimeError):
            if whole and not self._broken:
                self._say("parted", "")
                if self._rank == 0:
                    self._wait({rank: self._key("parted", rank) for rank in range(self._size)})
        self._ended.set()
        self._signs.join()

    def forget(self) -> None:
        """Delete what this rank said, once all have heard it."""
        with contextlib.suppress(RuntimeError):  # the store is gone
            for key in self._keys:
                self._store.delete_key(key)

    def _exchange(self, own: str, ranks: list[int]) -> list[Any]:
        self._count += 1
        keys = {rank: self._key(str(self._count), rank) for rank in ranks}
        try:
            if self._rank in keys:
                self._say(str(self._count), own)
            self._wait(keys)
            return [json.loads(text) for text in self._store.multi_get(list(keys.values()))]
        except CheckpointError:
            raise
        except RuntimeError as error:  # what torch raises where the store is gone
            raise self._lost(f"the job's store does not answer ({error})") from error

    def _key(self, what: str, rank: int) -> str:
        return f"{self._name}/{what}/{rank}"

    def _say(self, what: str, value: str) -> None:
        key = self._key(what, self._rank)
        self._keys.append(key)
        self._store.set(key, value)

    def _wait(self, keys: dict[int, str]) -> None:
        pause, watch, due = SHORTEST, Watch(), time.monotonic() + BEAT
        while not self._store.check(list(keys.values())):
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST + PER_RANK * self._size)
            if time.monotonic() > due:
                due += BEAT
                missing = [rank for rank, key in keys.items() if not self._store.check([key])]
                if silent := watch.silent({rank: self._sign_of(rank) for rank in missing}, time.monotonic()):
                    which = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
                    raise self._lost(f"there was no sign of life from {which} for {SILENCE:.0f} s")

    def _sign_of(self, rank: int) -> bytes:
        key = self._key("life", rank)
        return self._store.get(key) if self._store.check([key]) else b""

    def _lost(self, why: str) -> Exception:
        self._broken = True
        return CheckpointError.of("checkpoint", "saved with wait=False", why, "save again; what was saved before is untouched")

    def _give_signs(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, which the save itself will find
            for count in itertools.count():
                self._store.set(self._keys[0], str(count))
                if self._ended.wait(BEAT):
                    return


@final
class Watch:
    """The last sign of life of each rank, and when it was new."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[bytes, float]] = {}

    def silent(self, signs: dict[int, bytes], now: float) -> list[int]:
        """The ranks whose sign has been the same for too long."""
        for rank, sign in signs.items():
            if rank not in self._last or self._last[rank][0] != sign:
                self._last[rank] = (sign, now)
        return [rank for rank in signs if now - self._last[rank][1] > SILENCE]
