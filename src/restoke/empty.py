"""Models built on the meta device, without memory: made empty where they will live, then filled from a file."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from restoke.errors import SpecError


def place(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on the device, in place; what is on the meta device becomes uninitialised memory there. Ties stay."""
    if not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model.to(device)
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                if p not in made:
                    made[p] = nn.Parameter(_placed(p.detach(), device), p.requires_grad)
                module._parameters[name] = made[p]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _placed(buffer, device)
    return model


def place_shards(model: nn.Module, device: torch.device) -> None:
    """As `place`, of a model whose parameters are shards already: each rank makes its own alone."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        model._apply(lambda tensor: _placed(tensor, device) if tensor.is_meta else tensor)  # type: ignore[no-untyped-call]


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)


def refuse_unfilled(model: nn.Module, filled: bool) -> None:
    """Raises SpecError where something on the meta device would be left as it is: no file has it, or none was given."""
    kept = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta and not filled:
            instead = "prepare(model, optimizer, weights=PATH), or a model built outside torch.device('meta')"
            raise SpecError.of("model", name, "it is on the meta device and has no values", instead)
        if tensor.is_meta and id(tensor) not in kept:
            why = "it is on the meta device, and no file has it: it is a buffer that is not persistent"
            raise SpecError.of("model", name, why, "build it with torch.device('cpu') inside the model")
