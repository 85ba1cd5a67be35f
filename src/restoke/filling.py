"""A prepared model filled from a file of weights: each rank reads what it holds, and no more."""

from __future__ import annotations

from pathlib import Path

from restoke.parts import Parts
from restoke.said import say
from restoke.world import World


def fill(parts: Parts, path: Path, world: World) -> None:
    """Every rank calls this. Raises CheckpointError: the file cannot be read, or has not exactly the model's tensors."""
    from restoke.checkpoint.weights import open_weights

    found = open_weights(path, names=list(parts.module.state_dict()), world=world)
    for note in found.notes if world.is_main else ():
        say(note)
    parts.state.restore(found, strict=True)
