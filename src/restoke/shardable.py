"""What torch's FSDP2 asks of a model: refused where it is not so, and made so where that changes no number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from restoke.comm import broadcast_tensor
from restoke.errors import SpecError
from restoke.nn.trained import Shared
from restoke.parts import Request
from restoke.said import say_once
from restoke.world import World


def kept_whole(request: Request) -> list[nn.Parameter]:
    """Parameters without a dimension or an element, which FSDP2 cannot cut: each rank keeps them whole."""
    for name, p in request.model.named_parameters():
        if isinstance(p, nn.UninitializedParameter):
            why = "its shape is not known before the first forward"
            raise SpecError.of("model", name, why, "run one forward before prepare, or use layers of known sizes")
    whole = [p for p in request.model.parameters() if p.ndim == 0 or p.numel() == 0]
    if whole and request.scaler is not None:
        why = "torch cannot unscale a parameter without a dimension, or without elements, beside sharded ones"
        raise SpecError.of("precision", request.spec.precision, why, "precision=bf16, or a parameter of shape (1,)")
    return whole


def refuse_mixed(units: Sequence[nn.Module], model: nn.Module, apart: Sequence[nn.Parameter]) -> None:
    """Raises SpecError where parameters that are trained and gathered together, inner units first, differ in dtype."""
    names = {p: name for name, p in model.named_parameters()}
    taken = set(apart)
    for unit in units:
        own = [p for p in unit.parameters() if p.requires_grad and p not in taken]
        taken.update(unit.parameters())
        for p in own:
            if p.dtype != own[0].dtype:
                first = f"{names[own[0]]} is {str(own[0].dtype).removeprefix('torch.')}"
                why = f"{first}, and torch's FSDP2 gathers parameters that are trained together in one dtype"
                instead = "one dtype for all that is trained, strategy=zero1, or blocks= of one dtype each"
                raise SpecError.of("model", f"{names[p]} of {str(p.dtype).removeprefix('torch.')}", why, instead)


@torch.no_grad()
def start_alike(unit: nn.Module, world: World, shared: Shared) -> None:
    """On the device, contiguous, with rank 0's weights, as DDP starts: unit by unit, since the whole may not fit there."""
    changed = 0
    for p in _whole(unit.parameters()):
        changed += not p.is_contiguous()
        p.data = p.data.contiguous()
    if changed and world.is_main:
        say_once(f"parameters in another order of memory, such as channels_last, are made contiguous for shards: {changed}")
    for tensor in (*_whole(unit.parameters()), *_whole(unit.buffers())):
        if not tensor.is_meta:
            tensor.data = tensor.data.to(world.device)
            if world.size > 1 and tensor not in shared:
                broadcast_tensor(tensor.data)


def _whole(tensors: Iterator[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if not isinstance(tensor, DTensor)]


def leave_inference_mode(unit: nn.Module) -> None:
    """Gathered parameters outlive a forward, and such as torch.inference_mode has made cannot be trained with: within the
    unit it is torch.no_grad. Called when the unit is sharded, so that it comes before torch gathers, and after it has freed.
    """
    left: list[ExitStack] = []

    def before(*_: Any) -> None:
        left.append(ExitStack())
        if torch.is_inference_mode_enabled():
            left[-1].enter_context(torch.inference_mode(False))
            left[-1].enter_context(torch.no_grad())

    unit.register_forward_pre_hook(before, prepend=True)
    unit.register_forward_hook(lambda *_: left.pop().close(), always_call=True)
