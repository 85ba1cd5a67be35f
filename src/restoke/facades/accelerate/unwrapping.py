"""What scripts import beside an Accelerator to unwrap models and save objects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from restoke.facades.accelerate.state import PartialState
from restoke.facades.accelerate.trained import trained_of
from restoke.facades.accelerate.weights import save_object


def extract_model_from_parallel(
    model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True, recursive: bool = False
) -> nn.Module:
    """The script's own module inside of what `prepare` returned."""
    trained = trained_of(model)
    own = model if trained is None else trained.parts.module
    while isinstance(own, DistributedDataParallel | DataParallel):
        own = own.module
    return own


def save(obj: Any, f: str | os.PathLike[str], save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Write an object on rank 0, or on the first rank of each machine."""
    world = PartialState().world
    if (world.local_rank if save_on_each_node else world.rank) == 0:
        save_object(obj, Path(f), safe_serialization)


def wait_for_everyone() -> None:
    """Every rank waits here for the others."""
    PartialState().wait_for_everyone()
