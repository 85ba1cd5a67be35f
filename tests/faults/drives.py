"""A drive that loses power: from the operations of a run, what may be on it afterwards.

What `sync` of a file has not covered may be lost, and so may names that `sync` of their folder has not. Names in one folder
reach the drive in their order (as journals do it), those of different folders in any; a rename is whole or not there.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from attrs import define, field

from tests.faults.operations import Operation


@final
@define(eq=False)
class _File:
    now: bytes = b""
    safe: bytes = b""


@final
@define(eq=False)
class _Folder:
    """`pending` are the changes of names since the last sync: each all or nothing; None is a removed name."""

    safe: dict[str, _File | _Folder] = field(factory=dict)
    pending: list[dict[str, _File | _Folder | None]] = field(factory=list)

    def now(self, changes: int | None = None) -> dict[str, _File | _Folder]:
        """The names once so many of the pending changes are on the drive; by default all, which is what processes see."""
        names: dict[str, _File | _Folder | None] = dict(self.safe)
        for change in self.pending[:changes]:
            names |= change
        return {name: node for name, node in names.items() if node is not None}


Names = Callable[[int], int]  # of so many pending changes of a folder, how many are on the drive
Content = Callable[[_File], bytes]
LOST: Content = lambda file: file.safe  # noqa: E731
KEPT: Content = lambda file: file.now  # noqa: E731


def torn(file: _File) -> bytes:
    """The length is on the drive, and half of what was not synced: the rest are zeros."""
    if file.safe == file.now:
        return file.now
    return file.now[: len(file.now) // 2].ljust(len(file.now), b"\0")


@final
@define(eq=False)
class Drive:
    root: _Folder

    @classmethod
    def of(cls, folder: Path) -> Drive:
        """All that is in the folder is safe."""
        return cls(_read(folder))

    def perform(self, operation: Operation) -> None:
        DO[operation.kind](self, operation)

    def images(self, chance: random.Random, more: int = 3) -> Iterator[Drive]:
        """What may be left: nothing unsafe, all of it, names without content, content without names, and mixtures."""
        none: Names = lambda changes: 0  # noqa: E731
        every: Names = lambda changes: changes  # noqa: E731
        some: Names = lambda changes: chance.randint(0, changes)  # noqa: E731

        def mixed(file: _File) -> bytes:
            return chance.choice((LOST, KEPT, torn))(file)

        yield from (self._left(none, LOST), self._left(every, KEPT), self._left(every, LOST), self._left(every, torn))
        yield self._left(none, KEPT)
        for _ in range(more):
            yield self._left(some, mixed)

    def _left(self, names: Names, content: Content) -> Drive:
        def copy(folder: _Folder) -> _Folder:
            found = folder.now(names(len(folder.pending)))
            return _Folder({name: kept(it) if isinstance(it, _File) else copy(it) for name, it in found.items()})

        def kept(file: _File) -> _File:
            data = content(file)
            return _File(data, data)

        return Drive(copy(self.root))

    def write_to(self, folder: Path) -> Path:
        """What processes see, as real files in a new folder."""
        _write(self.root, folder)
        return folder

    def digest(self) -> str:
        """Alike for drives on which processes see the same."""
        digest = hashlib.blake2b()
        _feed(self.root, digest.update)
        return digest.hexdigest()

    def _at(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self.root
        for name in [] if path == "." else path.split("/"):
            assert isinstance(node, _Folder)
            node = node.now()[name]
        return node

    def _file(self, path: str) -> _File:
        node = self._at(path)
        assert isinstance(node, _File)
        return node

    def _above(self, path: str) -> tuple[_Folder, str]:
        head, _, name = path.rpartition("/")
        node = self._at(head or ".")
        assert isinstance(node, _Folder)
        return node, name

    def _put(self, path: str, node: _File | _Folder | None) -> None:
        folder, name = self._above(path)
        folder.pending.append({name: node})

    def _write(self, it: Operation) -> None:
        file = self._file(it.path)
        file.now = file.now[: it.offset].ljust(it.offset, b"\0") + it.data + file.now[it.offset + len(it.data) :]

    def _truncate(self, it: Operation) -> None:
        file = self._file(it.path)
        file.now = file.now[: it.offset].ljust(it.offset, b"\0")

    def _sync(self, it: Operation) -> None:
        node = self._at(it.path)
        if isinstance(node, _File):
            node.safe = node.now
        else:
            node.safe, node.pending = node.now(), []

    def _rename(self, it: Operation) -> None:
        (folder, old), (other, new) = self._above(it.path), self._above(it.target)
        assert folder is other, f"{it}: between folders is not modelled"
        folder.pending.append({old: None, new: folder.now()[old]})


DO: dict[str, Callable[[Drive, Operation], None]] = {
    "make": lambda drive, it: drive._put(it.path, _Folder()),
    "create": lambda drive, it: drive._put(it.path, _File()),
    "remove": lambda drive, it: drive._put(it.path, None),
    "write": Drive._write,
    "truncate": Drive._truncate,
    "sync": Drive._sync,
    "rename": Drive._rename,
}


def crashes(folder: Path, done: Sequence[Operation], seed: int = 0) -> Iterator[tuple[int, Drive]]:
    """After each number of operations, everything that a power failure may leave of the folder as it was before them."""
    chance = random.Random(seed)
    drive = Drive.of(folder)
    for count in range(len(done) + 1):
        if count:
            drive.perform(done[count - 1])
        seen: set[str] = set()
        for image in drive.images(chance):
            if image.digest() not in seen:
                seen.add(image.digest())
                yield count, image


def replayed(folder: Path, done: Sequence[Operation]) -> Drive:
    """What processes see once all of it is done. It is what they do see, unless something bypassed the file layer."""
    drive = Drive.of(folder)
    for operation in done:
        drive.perform(operation)
    return drive


def _read(folder: Path) -> _Folder:
    found: dict[str, _File | _Folder] = {}
    for path in folder.iterdir():
        assert not path.is_symlink(), f"{path}: links are not modelled"
        found[path.name] = _read(path) if path.is_dir() else _File(*[path.read_bytes()] * 2)
    return _Folder(found)


def _write(folder: _Folder, path: Path) -> None:
    path.mkdir(parents=True)
    for name, node in folder.now().items():
        if isinstance(node, _File):
            (path / name).write_bytes(node.now)
        else:
            _write(node, path / name)


def _feed(folder: _Folder, update: Callable[[bytes], None]) -> None:
    for name, node in sorted(folder.now().items()):
        update(f"{name!r}{type(node).__name__}".encode())
        if isinstance(node, _File):
            update(len(node.now).to_bytes(8, "little") + node.now)
        else:
            _feed(node, update)
            update(b"end")
