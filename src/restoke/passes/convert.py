"""Parameters in a low precision: the model is converted, its inputs are cast to it, and its outputs come back in float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from restoke.precision import dtype
from restoke.spec import Precision


def convert(model: nn.Module, precision: Precision) -> None:
    """Floating parameters and buffers, and what passes in and out of the model's forward, as Precision.params says."""
    if precision.params is None:
        return
    low = dtype(precision.params)
    model.to(low)
    into, out_of = partial(_cast, to=low), partial(_cast, to=torch.float32)
    model.register_forward_pre_hook(lambda _, args, kwargs: (_each(into, args), _each(into, kwargs)), with_kwargs=True)
    model.register_forward_hook(lambda _, args, output: _each(out_of, output))


def _cast(value: Any, to: torch.dtype) -> Any:
    return value.to(to) if isinstance(value, Tensor) and value.is_floating_point() else value


def _each(cast: Any, tree: Any) -> Any:
    return pytree.tree_map(cast, tree)
