"""Clips gradients of some parameters, whole or sharded, that are reduced and unscaled already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from restoke.configs import ClipGradConfig, ClipGradNormConfig
from restoke.spec import Clip


def clip_some(parameters: Sequence[Tensor], how: Clip) -> Tensor | None:
    """Clip gradients that are settled and unscaled. Sharded ones are clipped by their whole norm."""
    if isinstance(how, ClipGradConfig):
        for p in parameters:
            assert p.grad is not None
            local: Any = p.grad
            local = local.to_local() if _sharded(local) else local
            local.clamp_(-how.clip_value, how.clip_value)
        return None
    assert isinstance(how, ClipGradNormConfig)
    norm: Any = nn.utils.clip_grad_norm_(parameters, how.max_norm, how.norm_type)
    whole: Tensor = norm.full_tensor() if _sharded(norm) else norm
    return whole


def _sharded(tensor: Tensor) -> bool:
    return callable(getattr(tensor, "to_local", None))
