"""Outputs that are views get a place of their own in the graph: an in-place operation would take FSDP2's hooks from them."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


@final
class _Same(torch.autograd.Function):
    """The same numbers in the same memory, and no view of anything."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def own_outputs(module: nn.Module) -> None:
    """From here on the module's outputs are no views, for hooks that are registered later."""
    module.register_forward_hook(lambda _, args, output: pytree.tree_map(_owned, output))


def _owned(value: Any) -> Any:
    if isinstance(value, Tensor) and value.requires_grad and value._is_view():
        return _Same.apply(value)  # type: ignore[no-untyped-call]
    return value
