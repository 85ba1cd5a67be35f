"""Loading: which checkpoint, is it whole, and the boxes of its tensors that a rank asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final, overload

import torch
from attrs import Factory, define, field, frozen
from torch import Tensor

from restoke.checkpoint.agree import alone, together
from restoke.checkpoint.container import BITS, DTYPES
from restoke.checkpoint.find import candidates
from restoke.checkpoint.generations import faulty
from restoke.checkpoint.holding import Held
from restoke.checkpoint.manifest import Manifest, Piece, TensorEntry, file_name, parse, read_body
from restoke.checkpoint.plain import MALFORMED, decode_mapping
from restoke.checkpoint.reading import TensorFile
from restoke.checkpoint.standing import TRIES, Mark, mark, names
from restoke.checkpoint.tiling import Box
from restoke.errors import CheckpointError, nearest
from restoke.world import World

VALUES = "values/"
KEPT_OPEN = 256  # files that are opened at once: what becomes of the folder does not concern their reader any more


@final
@define(eq=False)
class Opened:
    """A checkpoint that was verified when it was opened: a `restoke.parts.Saved`, with what else is known of it.

    `values` are those of rank 0, `rank_values[rank]` what each rank kept under `rank/`. `notes` has a line where another
    checkpoint would have been newer.
    """

    path: Path
    tag: str
    manifest: Manifest
    _mark: Mark = field(default=Factory(lambda opened: mark(opened.path), takes_self=True))
    notes: list[str] = field(factory=list)
    _held: Held = field(factory=Held)
    meta: Mapping[str, Any] = field(init=False)
    values: Mapping[str, Any] = field(init=False)
    rank_values: Sequence[Mapping[str, Any]] = field(init=False)
    _files: dict[int, TensorFile] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for rank in range(min(self.world_size, KEPT_OPEN)):
            with self._reading(rank):
                self._file(rank)
        self.meta = decode_mapping(self.manifest.meta, self.read)
        self.values = decode_mapping(self.manifest.values, self.read)
        self.rank_values = _RankValues(self)

    @property
    def world_size(self) -> int:
        """How many ranks saved it."""
        return self.manifest.world_size

    @property
    def generation(self) -> int:
        """It counts up with each save into a folder."""
        return self.manifest.generation

    def keys(self) -> Collection[str]:
        """The keys of its tensors, but for those among the values."""
        return [key for key in self.manifest.tensors if not key.startswith(VALUES)]

    def shape(self, key: str) -> tuple[int, ...]:
        """The global shape. Raises CheckpointError where there is no such tensor."""
        return self._entry(key).shape

    def dtype(self, key: str) -> torch.dtype:
        """The dtype as saved. Raises CheckpointError where there is no such tensor."""
        return DTYPES[self._entry(key).dtype]

    def read(self, key: str, offsets: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """A new CPU tensor: the whole, or the box of `shape` at `offsets`, of which only the bytes asked for are read.

        Raises:
            CheckpointError: there is no such tensor or box, or a file cannot be read any more.
        """
        entry = self._entry(key)
        wanted = Box.whole(entry.shape) if offsets is None or shape is None else Box(tuple(offsets), tuple(shape))
        if (offsets is None) != (shape is None) or not wanted.inside(entry.shape):
            why = f"there is no box of shape {shape} at {offsets} in {entry.shape}"
            raise CheckpointError.of(key, "a box", why, "offsets and shape within the tensor, or neither")
        for piece in entry.pieces:
            if piece.box == wanted and (held := self._held.give(piece.rank, key)) is not None:
                return held
        result = torch.empty(wanted.shape, dtype=DTYPES[entry.dtype])
        for piece in entry.pieces if result.numel() else ():
            shared = wanted.shared(piece.box)
            if shared is not None:
                part = result[shared.within(wanted)] if result.ndim else result
                self._fill(key, piece, shared, part)
        return result

    def _entry(self, key: str) -> TensorEntry:
        if key not in self.manifest.tensors:
            raise CheckpointError.of("key", key, f"{self.tag} has no such tensor", nearest(key, self.keys()))
        return self.manifest.tensors[key]

    def _fill(self, key: str, piece: Piece, shared: Box, part: Tensor) -> None:
        held = self._held.give(piece.rank, key)
        if held is not None:
            bits = BITS[held.element_size()]  # some dtypes have no copies
            part.view(bits).copy_(held.view(bits)[shared.within(piece.box) or ...])
            return
        with self._reading(piece.rank):
            self._file(piece.rank).read(key, self.manifest.tensors[key].dtype, piece.box, shared, part)

    def _file(self, rank: int) -> TensorFile:
        if rank not in self._files:
            file = TensorFile.open(self.path / file_name(rank, self.world_size))
            if mark(self.path) != self._mark:
                raise ValueError("another save has replaced it")
            self._files[rank] = file
        return self._files[rank]

    @contextmanager
    def _reading(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (OSError, *MALFORMED) as error:
            name = file_name(rank, self.world_size)
            why = f"{name} could be read when it was opened, and cannot any more ({error})"
            raise CheckpointError.of("checkpoint", str(self.path), why, "load again") from error


@final
@define(eq=False)
class _RankValues(Sequence[Mapping[str, Any]]):
    """Decoded when asked for: most ranks ask for their own alone."""

    opened: Opened

    def __len__(self) -> int:
        return self.opened.world_size

    @overload
    def __getitem__(self, rank: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, rank: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(rank, slice):
            return [self[i] for i in range(*rank.indices(len(self)))]
        return decode_mapping(self.opened.manifest.rank_values[rank], self.opened.read)


def read(folder: Path | str, tag: str | None, world: World) -> Opened:
    """Open a checkpoint once every byte of it has been verified. Every rank calls this, and verifies its share.

    Args:
        folder: what was given to `write`.
        tag: which one; None takes the newest good one, and says in `notes` if that is not the newest.

    Raises:
        CheckpointError: on every rank the same: there is none, or the one asked for is damaged (the file is named), or it is
            none of restoke's.
    """
    folder = Path(folder).absolute()  # what is opened is read when it is asked for
    for _ in range(TRIES):
        verdict = _newest(folder, tag, world)
        if verdict.opened is not None:
            return verdict.opened
    raise CheckpointError.of("folder", str(folder), verdict.fault, "load while nobody saves into it")


def _newest(folder: Path, tag: str | None, world: World) -> _Verdict:
    """On the newest good one, or on one that was replaced meanwhile."""
    tags, faults, seen = alone(lambda: candidates(folder, tag), world, folder)
    for found, name in tags:
        verdict = _verified(folder / name, found, world)
        if verdict.fault and alone(lambda: names(folder), world, folder) != seen:
            return _Verdict(None, _replaced(found), True)
        if verdict.opened is not None and faults:
            bad = ", ".join(f"{tag} cannot ({why})" for tag, why in faults.items())
            verdict.opened.notes.append(f"loaded {found}, the newest checkpoint that can be: {bad}")
        if verdict.opened is not None or verdict.replaced:
            return verdict
        faults[found] = verdict.fault
    raise _none_good(folder, tag, faults)


def _none_good(folder: Path, tag: str | None, faults: Mapping[str, str]) -> Exception:
    if tag is not None:
        remedy = "another tag, or none for the newest good one"
        return CheckpointError.of("tag", tag, f"it cannot be loaded: {faults[tag]}", remedy)
    why = f"none of its checkpoints can be loaded ({'; '.join(f'{bad}: {why}' for bad, why in faults.items())})"
    return CheckpointError.of("folder", str(folder), why, "another folder")


@final
@frozen
class _Verdict:
    """`replaced`: look again, for a save was at work."""

    opened: Opened | None = None
    fault: str = ""
    replaced: bool = False


def _verified(path: Path, tag: str, world: World) -> _Verdict:
    """The checkpoint, or what is wrong. Each rank checks its share of the files; all come to the same verdict."""

    def check() -> tuple[Opened | None, Any]:
        before = mark(path)
        opened, said = _own_share(path, tag, world, before)
        return opened, {**said, "replaced": mark(path) != before}

    opened, said = together(check, world, path)
    if any(item["replaced"] for item in said):
        return _Verdict(None, _replaced(tag), True)
    for fault in [*(item["fault"] for item in said), *(item["unopened"] for item in said)]:
        if fault:
            return _Verdict(None, fault)
    for rank, item in enumerate(said):
        if item["same"] != said[0]["same"]:
            return _Verdict(None, f"rank {rank} sees another one than rank 0: the folder is not shared", True)
    return _Verdict(opened)


def _replaced(tag: str) -> str:
    return f"another save replaced or deleted {tag} while it was read, {TRIES} times"


def _own_share(path: Path, tag: str, world: World, before: Mark) -> tuple[Opened | None, dict[str, Any]]:
    """`fault` is of this rank's files; `unopened` may be of another's, who says better what is wrong with it."""
    found = {"fault": "", "unopened": "", "same": []}
    try:
        manifest = parse(read_body(path))
        shares = range(world.rank, manifest.world_size, world.size)
        held = Held() if manifest.world_size == world.size else Held(room=0)  # else this rank may want none of it
        if fault := next((fault for rank in shares if (fault := faulty(path, manifest, rank, held))), ""):
            return None, found | {"fault": fault}
        opened = Opened(path, tag, manifest, before, held=held)
    except (ValueError, OSError) as error:
        return None, found | {"fault": str(error)}
    except CheckpointError as error:
        return None, found | {"unopened": error.problems[0].why}
    return opened, found | {"same": [manifest.generation, manifest.created]}
