"""TorchShard's face: its names, with their arguments, over `restoke.nn` and `restoke.distributed`.

`restoke launch --as torchshard` lets `import torchshard` find it.
"""

from __future__ import annotations

import importlib
from typing import Any

from restoke._version import __version__

_TAGS = ("get_parallel_dim", "register_parallel_attribute", "register_parallel_dim", "set_attribute")
# where each name is, and what it is called there; loaded on first use
_PLACES = {name: (f"{__name__}.tags", name) for name in _TAGS} | {
    "slice": (f"{__name__}.tags", "slice_evenly"),
    "TORCH_VERSION": (f"{__name__}.tags", "TORCH_VERSION"),
    "collect_state_dict": (f"{__name__}.state_dicts", "collect_state_dict"),
    "relocate_state_dict": (f"{__name__}.state_dicts", "relocate_state_dict"),
    "register_ddp_parameters_to_ignore": (f"{__name__}.copies", "register_ddp_parameters_to_ignore"),
}
_SUBMODULES = {"distributed": "distributed", "nn": "nn", "utils": "sizes"}
_FOLDED = ("overrides", "serialization", "_tensor")  # theirs, whose names are those of the package

# what `import torchshard` and its submodules become
MODULES: dict[str, str] = {
    "torchshard": __name__,
    **{f"torchshard.{theirs}": f"{__name__}.{ours}" for theirs, ours in _SUBMODULES.items()},
    **{f"torchshard.nn.{name}": f"{__name__}.nn.{name}" for name in ("functional", "init")},
    **{f"torchshard.{name}": __name__ for name in _FOLDED},
    "torchshard.nn.modules": f"{__name__}.nn",
    "torchshard.distributed.core": f"{__name__}.distributed",
    "torchshard.distributed.comm": f"{__name__}.distributed",
}

_PARALLEL_DIM, _ORDER_ATTR = "parallel_dim", "order_type"

__all__ = ["__version__", *_PLACES, *_SUBMODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        value: Any = importlib.import_module(f"{__name__}.{_SUBMODULES[name]}")
    elif name in _PLACES:
        module, original = _PLACES[name]
        value = getattr(importlib.import_module(module), original)
    else:
        raise AttributeError(f"TorchShard's face has no {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
