"""The settings of every strategy and precision, as values: frozen, validated, read from plain mappings, and free of torch."""

from restoke.configs.amp import AMPConfig
from restoke.configs.apex import ApexConfig
from restoke.configs.clip import ClipGradConfig, ClipGradNormConfig
from restoke.configs.ddp import DDPConfig
from restoke.configs.declare import settings
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
from restoke.configs.enums import BackendOptions, DistributedOptions, FP16Options, HorovodOps, OffloadDevice, ParamNormalize
from restoke.configs.fairscale import FairscaleFSDPConfig, FairscaleOSSConfig, FairscaleSDDPConfig
from restoke.configs.horovod import HorovodConfig
from restoke.configs.read import settings_from, settings_to
from restoke.configs.registry import SETTINGS, key_of, register

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
    "FairscaleFSDPConfig",
    "FairscaleOSSConfig",
    "FairscaleSDDPConfig",
    "HorovodConfig",
    "HorovodOps",
    "OffloadDevice",
    "ParamNormalize",
    "key_of",
    "register",
    "settings",
    "settings_from",
    "settings_to",
]
