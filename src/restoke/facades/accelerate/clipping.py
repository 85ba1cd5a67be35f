"""Clips gradients of any parameters: of one prepared model, of several, or of a part of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from restoke.configs import ClipGradConfig
from restoke.errors import SessionError
from restoke.facades.accelerate.clip_some import clip_some
from restoke.facades.accelerate.trained import Trained
from restoke.said import say_once
from restoke.spec import Clip

NO_LIMIT = ClipGradConfig(clip_value=torch.finfo(torch.float32).max)  # unscales and settles, and changes nothing finite


def clip(parameters: Tensor | Iterable[Tensor], how: Clip, models: Sequence[Trained]) -> Tensor | None:
    """Clip; returns the norm before, or None where values were clipped. What the spec declares from outside goes first.

    Raises:
        SessionError: the parameters are none.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not given:
        raise SessionError.of("parameters", "none", "there is nothing to clip", "model.parameters(), taken anew for each call")
    mine = {id(p) for p in given}
    touched = [model for model in models if not model.ids.isdisjoint(mine)]
    declared = next((model.session.spec.clip for model in touched if model.session.spec.clip is not None), None)
    if declared is not None and declared != how:
        say_once(f"clipping as declared: {declared} (the script: {how})")
        how = declared
    if len(touched) == 1 and (touched[0].ids <= mine or _has_all_grads(touched[0], mine)):
        return touched[0].clip(how)
    for model in touched:
        if not model.clipped:
            model.clip(NO_LIMIT)
    return clip_some([p for p in given if p.grad is not None], how)


def _has_all_grads(model: Trained, mine: set[int]) -> bool:
    return all(id(p) in mine for p in model.parts.module.parameters() if p.grad is not None)


def measured(parameters: Tensor | Iterable[Tensor], norm_type: float) -> Tensor:
    """The norm of what this rank has gathered so far: within a window nothing is clipped."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad for p in given if p.grad is not None]
    return nn.utils.get_total_norm(grads, norm_type) if grads else torch.tensor(0.0)
