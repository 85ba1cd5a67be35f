"""Which optimizer belongs to which model, found by their parameters."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen
from torch import nn
from torch.optim import Optimizer


@frozen(eq=False, repr=False)
class Pairs:
    """`owned`: models that have an optimizer which is theirs alone. All others, `free`, go with no model for certain."""

    owned: dict[nn.Module, Optimizer] = field(factory=dict)
    free: list[Optimizer] = field(factory=list)


def pair(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Pairs:
    """The pairs among these. A model with two optimizers, or an optimizer with parameters of two models, makes no pair."""
    mine = {model: {id(p) for p in model.parameters()} for model in models}
    held = {id(opt): {id(p) for group in opt.param_groups for p in group["params"]} for opt in optimizers}
    pairs = Pairs()
    for optimizer in optimizers:
        has = held[id(optimizer)]
        owners = [model for model in models if has and has <= mine[model]]
        rivals = [other for other in optimizers if owners and other is not optimizer and held[id(other)] & mine[owners[0]]]
        if len(owners) == 1 and not rivals:
            pairs.owned[owners[0]] = optimizer
        else:
            pairs.free.append(optimizer)
    return pairs
