"""The settings of every strategy and precision, as values: frozen, validated, read from plain mappings, and free of torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from restoke.configs.amp import AMPConfig
from restoke.configs.clip import ClipGradConfig, ClipGradNormConfig
from restoke.configs.ddp import DDPConfig
from restoke.configs.declare import settings
from restoke.configs.enums import BackendOptions, DistributedOptions, FP16Options, HorovodOps, OffloadDevice, ParamNormalize
from restoke.configs.read import settings_from, settings_to
from restoke.configs.registry import SETTINGS, key_of, register

if TYPE_CHECKING:
    from restoke.configs.apex import ApexConfig
    from restoke.configs.deepspeed import (
        DeepspeedActivationCheckpointingConfig,
        DeepspeedAIOConfig,
        DeepspeedConfig,
        DeepspeedFlopsConfig,
        DeepspeedFP16Config,
        DeepspeedPLDConfig,
        DeepspeedTensorboardConfig,
    )
    from restoke.configs.deepspeed_zero import (
        DeepspeedOffloadOptimizerConfig,
        DeepspeedOffloadParamConfig,
        DeepspeedZeROConfig,
    )
    from restoke.configs.fairscale import FairscaleFSDPConfig, FairscaleOSSConfig, FairscaleSDDPConfig
    from restoke.configs.fsdp import FSDPConfig
    from restoke.configs.horovod import HorovodConfig
    from restoke.configs.tensor import TensorConfig

# the settings of engines are imported when first asked for: a run that does not use an engine does not wait for them
_PLACES = {
    "ApexConfig": "apex",
    "DeepspeedAIOConfig": "deepspeed",
    "DeepspeedActivationCheckpointingConfig": "deepspeed",
    "DeepspeedConfig": "deepspeed",
    "DeepspeedFP16Config": "deepspeed",
    "DeepspeedFlopsConfig": "deepspeed",
    "DeepspeedOffloadOptimizerConfig": "deepspeed_zero",
    "DeepspeedOffloadParamConfig": "deepspeed_zero",
    "DeepspeedPLDConfig": "deepspeed",
    "DeepspeedTensorboardConfig": "deepspeed",
    "DeepspeedZeROConfig": "deepspeed_zero",
    "FairscaleFSDPConfig": "fairscale",
    "FairscaleOSSConfig": "fairscale",
    "FairscaleSDDPConfig": "fairscale",
    "FSDPConfig": "fsdp",
    "HorovodConfig": "horovod",
    "TensorConfig": "tensor",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'restoke.configs' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"restoke.configs.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "SETTINGS",
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
    "FSDPConfig",
    "FairscaleFSDPConfig",
    "FairscaleOSSConfig",
    "FairscaleSDDPConfig",
    "HorovodConfig",
    "HorovodOps",
    "OffloadDevice",
    "ParamNormalize",
    "TensorConfig",
    "key_of",
    "register",
    "settings",
    "settings_from",
    "settings_to",
]
