"""The checkpoint of an Accelerator without a model: its loaders, its registered objects and its generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from restoke import checkpoint
from restoke.facades.accelerate.book import Book
from restoke.parts import Captured
from restoke.seeds import rng_state, set_rng_state
from restoke.world import World


def save(book: Book, folder: Path, tag: str, world: World, keep: int | None) -> None:
    """Write it. Every rank calls this."""
    own: dict[str, Any] = {"rank/registered": {"accelerate": book.state_dict()}, "rank/rng": rng_state(world.device)}
    meta = {"spec": {}, "steps": 0, "torch": str(torch.__version__)}
    checkpoint.write(folder, tag, Captured(values={"extras": {}, **own}), world, meta=meta, keep=keep)


def load(book: Book, folder: Path, tag: str | None, world: World) -> None:
    """Restore it; at another world size rank 0's, without the generators. Every rank calls this."""
    saved = checkpoint.read(folder, tag, world)
    alike = saved.world_size == world.size
    own = saved.rank_values[world.rank if alike else 0]
    book.load_state_dict(own["registered"]["accelerate"])
    if alike:
        set_rng_state(own["rng"], world.device)
