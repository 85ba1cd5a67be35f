"""Linear layers that multiply in float8, by torchao: replaced in place under their names, with the very same parameters."""

from __future__ import annotations

import importlib

from torch import nn

from restoke.errors import SpecError
from restoke.said import say_once
from restoke.spec import Precision
from restoke.world import World

TILE = 16  # float8 products on a GPU want both sizes to be multiples of it


def float8(model: nn.Module, precision: Precision, world: World) -> None:
    """What `Precision.linear` says; on a CPU the products are emulated. Says once which layers stay as they were, and why.

    Raises:
        SpecError: no layer of the model can be replaced.
    """
    if precision.linear is None:
        return
    left = {name: _obstacle(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    fitting = {name for name, why in left.items() if not why}
    if not fitting:
        why = (
            f"none of the model's {len(left)} linear layers can multiply in float8 ({next(iter(left.values()), 'it has none')})"
        )
        raise SpecError.of("precision", "fp8", why, f"layers whose sizes are multiples of {TILE}, or precision=bf16")
    torchao = importlib.import_module("torchao.float8")
    # gradients of weights sum over the samples, whose number need not be a multiple: padded
    config = torchao.Float8LinearConfig(emulate=world.device.type == "cpu", pad_inner_dim=True)
    torchao.convert_to_float8_training(model, module_filter_fn=lambda _, name: name in fitting, config=config)
    if world.is_main:
        say_once(_told(len(fitting), {name: why for name, why in left.items() if why}))


def _obstacle(name: str, module: nn.Linear) -> str:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if type(module) is not nn.Linear:
        return f"it is a {type(module).__name__}"
    if module.in_features % TILE or module.out_features % TILE:
        return f"its sizes are {module.in_features} and {module.out_features}"
    if not name:
        return "it is the model itself, which stays the object that it is: put it into another module"
    return "hooks are registered on it" if any(hooks) or "forward" in vars(module) else ""


def _told(count: int, left: dict[str, str]) -> str:
    names = "; ".join(f"{name}: {why}" for name, why in list(left.items())[:4])
    rest = f"; and {len(left) - 4} more" if len(left) > 4 else ""
    stay = f"; {len(left)} do not ({names}{rest})" if left else ""
    return f"fp8: {count} linear layers multiply in float8{stay}"
