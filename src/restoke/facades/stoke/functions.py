"""The small functions that Stoke's modules offered beside its classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from restoke.facades.stoke.printing import Printer


def place_data_on_gpu(data: Any, fp16: Any = None) -> Any:
    """A batch on the current GPU. Labels keep their dtype, whatever `fp16` is: the precision casts where it must."""
    from restoke.data import place

    return place(data, torch.device("cuda", torch.cuda.current_device()), non_blocking=True)


def zero_optimizer_grads(optimizer: Optimizer, apex: bool = False, horovod: bool = False) -> None:
    """Drop the gradients; Apex and Horovod want them filled with zeros."""
    optimizer.zero_grad(set_to_none=not (apex or horovod))


def unrolled_print(msg: Any, single_line: bool = False) -> None:
    """Print a message, or each of a list."""
    Printer(None, None).say(msg, single_line)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it."""
    Path(path).mkdir(parents=True, exist_ok=True)
