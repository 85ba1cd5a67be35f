"""The rows of a weight that an optimizer sees while it steps: with them comes their state, and goes where it is kept after.

The optimizer knows two parameters: the whole shard, which never has a gradient, and the rows in the sample. State is kept
under the shard, so that it is saved, and cut anew for other ranks, as that of any parameter; it lies in the CPU's memory,
which takes pages only for rows that were sampled once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.errors import SpecError


def bring(optimizer: Optimizer, rows: nn.Parameter, whole: nn.Parameter, index: Tensor) -> None:
    """Give the optimizer the state of these rows of the whole."""
    if whole not in optimizer.state:
        return
    kept = optimizer.state[whole]
    state = optimizer.state[rows]
    for key, value in kept.items():
        if not _by_row(value, whole):
            state[key] = value
            continue
        kept[key] = value.cpu()  # where a checkpoint was loaded, it came to the weight's device
        state[key] = kept[key][index.cpu()].to(rows.device)


def take(optimizer: Optimizer, rows: nn.Parameter, whole: nn.Parameter, index: Tensor) -> None:
    """Keep what the optimizer has of these rows; it then has none of them.

    Raises:
        SpecError: it has state that is neither by row nor one number.
    """
    state = optimizer.state.pop(rows, {})
    for key, value in state.items():
        kept = optimizer.state[whole]
        if not isinstance(value, Tensor) or value.ndim == 0:
            kept[key] = value
            continue
        if value.shape != rows.shape:
            kind = type(optimizer).__name__
            why = f"its {key} has shape {tuple(value.shape)} for {tuple(rows.shape)} sampled rows, and cannot be kept by row"
            raise SpecError.of("optimizer", kind, why, "SGD, Adam, AdamW, or another whose state has the parameter's shape")
        if key not in kept:
            kept[key] = _zeros(whole.shape, value.dtype)
        kept[key][index.cpu()] = value.cpu()


def _by_row(value: Any, whole: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == whole.shape


def _zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """In memory that is zero by itself: torch would write every page."""
    count = max(1, shape.numel()) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype)[: shape.numel()].view(shape)
