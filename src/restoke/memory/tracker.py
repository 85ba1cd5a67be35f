"""The tracker: follows every storage that operators see while it is entered, so that the peak and its classes are known.

It changes no value and no order of operators. What a kernel allocates for itself, and what other threads make and use among
themselves, it cannot see: its figures are of tracked storages.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, final

from attrs import define, field, frozen
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, is_traceable_wrapper_subclass_type

from restoke.held import Held
from restoke.memory.storages import storages
from restoke.memory.wrapped import CLASSES_OF, resized

MANY = 200_000  # entries of the log that are folded before a step does


@define(eq=False)
class _Record:
    """A storage. Its class is final when the log is read, which is after it is known what the storage was for."""

    nbytes: int
    kind: str
    reference: Any = None


@frozen
class Peak:
    """The most bytes at one time, and of what classes they were."""

    nbytes: int = 0
    held: Held = field(factory=Held)


@final
class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context, or `start` and `stop`. `phase` is the class of a new storage until it is known better.

    The log is read by `fold` alone: operators append to it, and so do storages that die, in whatever thread they do.
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "other"
        self.peak = Peak()
        self._device = device
        self._records: dict[int, _Record] = {}
        self._log: list[tuple[_Record, int]] = []
        self._held: Counter[_Record] = Counter()
        self._process = os.getpid()
        self._restore: Any = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled, unseen: torch would otherwise run the original, and for good, also once this is left."""
        return True

    @property
    def running(self) -> bool:
        return self._restore is not None

    def start(self) -> None:
        """Follow from now on, afresh. What lives already counts from when it is next used or labelled."""
        self._records, self._log, self._held = {}, [], Counter()
        self._restore = resized(self._measure)
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> bool:
        """Follow no more; what was found stays. False where another mode lies on top, which must be left first."""
        if _get_current_dispatch_mode() is not self:
            return False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._restore()
        self._restore = None
        for record in list(self._records.values()):
            record.reference = None  # no call when it dies
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it unwraps, and comes back with the operators on what it wraps
        if os.getpid() != self._process:  # a worker of a loader
            return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs.values())):
            self._see(tensor, self.phase)
        result = func(*args, **kwargs)
        for tensor in _tensors((result,)):
            self._see(tensor, self.phase)
        known = CLASSES_OF.get(func._schema.name)
        if known is not None:
            self.label((kind, t) for kind, values in known(args, kwargs, result) for t in _tensors(values))
        return result

    def label(self, classed: Iterable[tuple[str, Tensor]]) -> None:
        """These are of these classes; a storage that is given twice is of the first."""
        done: set[_Record] = set()
        for kind, tensor in classed:
            for record in self._see(tensor, kind):
                if record not in done:
                    record.kind = kind
                    done.add(record)

    def _see(self, tensor: Tensor, kind: str) -> list[_Record]:
        return [self._record(s, kind) for s in storages(tensor) if s.device.type == self._device]

    def _record(self, storage: UntypedStorage, kind: str) -> _Record:
        record = self._records.get(storage._cdata)
        if record is None:
            record = self._records[storage._cdata] = _Record(0, kind)
            record.reference = weakref.ref(storage, partial(self._drop, storage._cdata, record))
        self._resize(record, storage.nbytes())
        return record

    def _measure(self, storage: UntypedStorage) -> None:
        if storage.device.type == self._device:
            self._record(storage, self.phase)

    def _resize(self, record: _Record, nbytes: int) -> None:
        if nbytes != record.nbytes:
            self._log.append((record, nbytes - record.nbytes))
            record.nbytes = nbytes

    def _drop(self, key: int, record: _Record, _: object) -> None:
        if self._records.get(key) is record:
            del self._records[key]
        self._resize(record, 0)
        record.reference = None

    def fold_if_long(self) -> None:
        """Bounds the log where nothing steps, as in evaluation."""
        if len(self._log) > MANY:
            self.fold()

    def fold(self) -> Held:
        """Read the log, keep its peak if it is the highest, and return what is held now. Storages still unlabelled stay so."""
        log, self._log = self._log, []
        now = highest = sum(self._held.values())
        end = 0
        for number, (_, change) in enumerate(log, 1):
            now += change
            if now > highest:
                highest, end = now, number
        self._add(log[:end])
        if highest > self.peak.nbytes:
            self.peak = Peak(highest, self._by_class())
        self._add(log[end:])
        self._held += Counter()  # drops what is gone
        return self._by_class()

    def _add(self, log: list[tuple[_Record, int]]) -> None:
        for record, change in log:
            self._held[record] += change

    def _by_class(self) -> Held:
        found = Counter[str]()
        for record, nbytes in self._held.items():
            found[record.kind] += nbytes
        return Held.of(found)

    def begin_peak(self) -> None:
        """The peak begins anew, at what is held."""
        held = self.fold()
        self.peak = Peak(held.total, held)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
