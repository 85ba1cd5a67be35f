"""Stoke's face: everything that its scripts import, under the names that they import it by.

`restoke launch --as stoke` lets `import stoke` find it.
"""

from __future__ import annotations

import importlib
from typing import Any

from restoke._version import __version__

_CONFIGS = (
    "AMPConfig",
    "ApexConfig",
    "BackendOptions",
    "ClipGradConfig",
    "ClipGradNormConfig",
    "DDPConfig",
    "DeepspeedAIOConfig",
    "DeepspeedActivationCheckpointingConfig",
    "DeepspeedConfig",
    "DeepspeedFP16Config",
    "DeepspeedFlopsConfig",
    "DeepspeedOffloadOptimizerConfig",
    "DeepspeedOffloadParamConfig",
    "DeepspeedPLDConfig",
    "DeepspeedTensorboardConfig",
    "DeepspeedZeROConfig",
    "DistributedOptions",
    "FP16Options",
    "FairscaleFSDPConfig",
    "FairscaleOSSConfig",
    "FairscaleSDDPConfig",
    "HorovodConfig",
    "HorovodOps",
    "OffloadDevice",
    "ParamNormalize",
)
# where each name is, and what it is called there; loaded on first use
_PLACES = {name: ("restoke.configs", name) for name in _CONFIGS} | {
    "Stoke": ("restoke.facades.stoke.face", "Stoke"),
    "StokeOptimizer": ("restoke.facades.stoke.optimizer", "StokeOptimizer"),
    "StokeScheduler": ("restoke.facades.stoke.optimizer", "StokeScheduler"),
    "StokeStatus": ("restoke.facades.stoke.status", "StokeStatus"),
    "StokeDataLoader": ("restoke.data", "Loader"),
    "BucketedDistributedSampler": ("restoke.data", "BucketedDistributedSampler"),
    **{
        name: ("restoke.facades.stoke.functions", name)
        for name in ("make_folder", "place_data_on_gpu", "unrolled_print", "zero_optimizer_grads")
    },
}
_SUBMODULES = ("configs", "data", "status", "stoke", "utils")

# what `import stoke` and its submodules become: one module that has all their names
MODULES: dict[str, str] = {"stoke": __name__, **{f"stoke.{name}": __name__ for name in _SUBMODULES}}

__all__ = ["__version__", *_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"Stoke's face has no {name!r}")
    module, original = _PLACES[name]
    value = getattr(importlib.import_module(module), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
