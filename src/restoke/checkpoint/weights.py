"""Weights from anywhere, read lazily: safetensors files, torch's state dicts, the shards of an index, restoke's checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, final

import torch
from attrs import define, field
from safetensors import SafetensorError
from torch import Tensor

from restoke.checkpoint.agree import alone, together
from restoke.checkpoint.container import BITS
from restoke.checkpoint.manifest import generation_of, read_body
from restoke.checkpoint.opening import Opened, read
from restoke.checkpoint.places import holds_checkpoints, placed
from restoke.checkpoint.tiling import Box
from restoke.checkpoint.weights_files import Source, open_files
from restoke.checkpoint.weights_index import located
from restoke.checkpoint.weights_names import own_names
from restoke.errors import CheckpointError, nearest
from restoke.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
MODEL, EMA = "model/", "ema/"


@final
@define(eq=False)
class Weights:
    """The tensors of a model as a `restoke.parts.Saved`: keys are `model/NAME`, and nothing of an optimizer is in it.

    `values["model"]` has `aliases` (the other names of tied tensors) and `extra` (what is no tensor). `notes` has a line for
    each liberty that was taken, such as a prefix that was removed.
    """

    path: Path
    values: Mapping[str, Any]
    notes: list[str]
    _sources: Mapping[str, Source] = field(repr=False)

    def keys(self) -> Collection[str]:
        """`model/NAME` for each tensor."""
        return self._sources.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """The global shape. Raises CheckpointError where there is no such tensor."""
        return self._source(key).shape

    def dtype(self, key: str) -> torch.dtype:
        """The dtype as saved. Raises CheckpointError where there is no such tensor."""
        return self._source(key).dtype

    def read(self, key: str, offsets: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """A new CPU tensor: the whole, or the box of `shape` at `offsets`, of which only the bytes asked for are read.

        Raises:
            CheckpointError: there is no such tensor or box, or the file cannot be read any more.
        """
        source = self._source(key)
        wanted = Box.whole(source.shape) if offsets is None or shape is None else Box(tuple(offsets), tuple(shape))
        if (offsets is None) != (shape is None) or not wanted.inside(source.shape):
            why = f"there is no box of shape {shape} at {offsets} in {source.shape}"
            raise CheckpointError.of(key, "a box", why, "offsets and shape within the tensor, or neither")
        result = torch.empty(wanted.shape, dtype=source.dtype)
        if result.numel():
            bits = BITS[result.element_size()]
            result.view(bits).copy_(self._cut(source, wanted).view(bits))
        return result

    def _cut(self, source: Source, wanted: Box) -> Tensor:
        try:
            return source.cut(wanted)
        except (OSError, SafetensorError) as error:
            why = f"it could be read when it was opened, and cannot any more ({error})"
            raise CheckpointError.of("weights", str(self.path), why, "open it again") from error

    def _source(self, key: str) -> Source:
        if key not in self._sources:
            raise CheckpointError.of("key", key, f"{self.path.name} has no such tensor", nearest(key, self._sources))
        return self._sources[key]


def open_weights(
    path: Path | str,
    *,
    tag: str | None = None,
    ema: bool = False,
    names: Collection[str] = (),
    world: World | None = None,
) -> Weights:
    """Open a model's weights without reading them. With a world every rank calls this, and all get the same verdict.

    Args:
        path: a safetensors file; a state dict of `torch.save` (nothing but tensors and plain values is unpickled); an index of
            shards, or the folder with it; a folder with one such file; a folder that restoke saved into, or one checkpoint
            of it, which is verified.
        tag: which checkpoint of restoke's; None takes the newest good one.
        ema: the averaged weights of restoke's checkpoint; what has no average, such as a buffer, as it is in the model.
        names: those of the model, where they are known. The prefix `module.` stays where they have it too.

    Raises:
        CheckpointError: it is missing, incomplete, malformed, or could only be read by running code from it.
    """
    path, here = Path(path).absolute(), world or ALONE  # what is opened is read when it is asked for
    folder, found = alone(lambda: _checkpoint(path, tag), here, path)
    if folder is not None:
        return _of_checkpoint(_lean(read(folder, found, here)), ema)
    if tag is not None or ema:
        axis = "ema" if tag is None else "tag"
        why = f"{path} is no checkpoint of restoke, and only these have it"
        raise CheckpointError.of(axis, tag or ema, why, "leave it out")
    weights, _ = together(lambda: (_of_files(path, names), None), here, path)
    return weights


def _checkpoint(path: Path, tag: str | None) -> tuple[str | None, str | None]:
    """The folder and tag, where it is a checkpoint of restoke or a folder of them."""
    folder, found = placed(path, tag)
    return (str(folder), found) if holds_checkpoints(folder) else (None, tag)


def _lean(opened: Opened) -> Opened:
    """Without the tensors that verifying kept at hand: most of them are the optimizer's, and nobody will ask for these here."""
    lean = Opened(opened.path, opened.tag, opened.manifest)
    lean.notes += opened.notes
    opened.rank_values = ()  # they refer back to it, so that it would stay until the next collection of garbage
    try:
        replaced = generation_of(read_body(opened.path)) != opened.generation
    except (OSError, ValueError):
        replaced = True
    if replaced:
        why = f"another save replaced or deleted {opened.tag} while it was opened"
        raise CheckpointError.of("checkpoint", str(opened.path), why, "open it again")
    return lean


def _of_checkpoint(opened: Opened, ema: bool) -> Weights:
    keys = {key: key for key in opened.keys() if key.startswith(MODEL)}  # noqa: SIM118
    averaged = {MODEL + key.removeprefix(EMA): key for key in opened.keys() if key.startswith(EMA)}  # noqa: SIM118
    if ema and not averaged:
        raise CheckpointError.of("ema", True, f"{opened.tag} has no averaged weights", "ema=False, or train with ema= declared")
    chosen = keys | averaged if ema else keys

    def source(key: str) -> Source:
        return Source(opened.shape(key), opened.dtype(key), lambda box: opened.read(key, box.offsets, box.shape))

    sources = {key: source(held) for key, held in chosen.items()}
    return Weights(opened.path, {"model": opened.values.get("model", {})}, list(opened.notes), sources)


def _of_files(path: Path, names: Collection[str]) -> Weights:
    found = open_files(located(path))
    named = own_names(found, names)
    values = {"model": {"aliases": named.aliases, "extra": named.extra}}
    sources = {MODEL + name: source for name, source in named.tensors.items()}
    return Weights(path, values, named.notes, sources)
