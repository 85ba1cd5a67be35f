"""Seeds and generators, as Accelerate's scripts set them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from restoke.data import synchronize_rng
from restoke.facades.accelerate.state import PartialState
from restoke.seeds import seed_all


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's, numpy's and torch's generators; with `device_specific` each rank's with `seed + rank`; with
    `deterministic` torch uses deterministic algorithms alone."""
    import numpy  # noqa: F401 - seeded too, also where the script imports it later

    seed_all(seed + (PartialState().process_index if device_specific else 0))
    if deterministic:
        torch.use_deterministic_algorithms(True)


def synchronize_rng_state(rng_type: Any = None, generator: torch.Generator | None = None) -> None:
    """Give this kind of generator rank 0's state on every rank. Every rank calls this."""
    synchronize_rng_states([rng_type], generator)


def synchronize_rng_states(rng_types: Iterable[Any], generator: torch.Generator | None = None) -> None:
    """Give these kinds of generators rank 0's state on every rank. Every rank calls this."""
    synchronize_rng(tuple(str(kind) for kind in rng_types), PartialState().world, generator)
