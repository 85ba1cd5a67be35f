"""restoke: declare what you want, keep your own PyTorch code, find out what it really does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from restoke._version import __version__

if TYPE_CHECKING:
    from restoke.configs import AMPConfig as AMPConfig
    from restoke.configs import ApexConfig as ApexConfig
    from restoke.configs import BackendOptions as BackendOptions
    from restoke.configs import ClipGradConfig as ClipGradConfig
    from restoke.configs import ClipGradNormConfig as ClipGradNormConfig
    from restoke.configs import DDPConfig as DDPConfig
    from restoke.configs import DeepspeedActivationCheckpointingConfig as DeepspeedActivationCheckpointingConfig
    from restoke.configs import DeepspeedAIOConfig as DeepspeedAIOConfig
    from restoke.configs import DeepspeedConfig as DeepspeedConfig
    from restoke.configs import DeepspeedFlopsConfig as DeepspeedFlopsConfig
    from restoke.configs import DeepspeedFP16Config as DeepspeedFP16Config
    from restoke.configs import DeepspeedOffloadOptimizerConfig as DeepspeedOffloadOptimizerConfig
    from restoke.configs import DeepspeedOffloadParamConfig as DeepspeedOffloadParamConfig
    from restoke.configs import DeepspeedPLDConfig as DeepspeedPLDConfig
    from restoke.configs import DeepspeedTensorboardConfig as DeepspeedTensorboardConfig
    from restoke.configs import DeepspeedZeROConfig as DeepspeedZeROConfig
    from restoke.configs import DistributedOptions as DistributedOptions
    from restoke.configs import FairscaleFSDPConfig as FairscaleFSDPConfig
    from restoke.configs import FairscaleOSSConfig as FairscaleOSSConfig
    from restoke.configs import FairscaleSDDPConfig as FairscaleSDDPConfig
    from restoke.configs import FP16Options as FP16Options
    from restoke.configs import FSDPConfig as FSDPConfig
    from restoke.configs import HorovodConfig as HorovodConfig
    from restoke.configs import HorovodOps as HorovodOps
    from restoke.configs import OffloadDevice as OffloadDevice
    from restoke.configs import ParamNormalize as ParamNormalize
    from restoke.configs import TensorConfig as TensorConfig
    from restoke.data import BucketedDistributedSampler as BucketedDistributedSampler
    from restoke.data import Loader as Loader
    from restoke.errors import RestokeError as RestokeError
    from restoke.facades.accelerate.accelerator import Accelerator as Accelerator
    from restoke.facades.stoke.face import Stoke as Stoke
    from restoke.facades.stoke.optimizer import StokeOptimizer as StokeOptimizer
    from restoke.facades.stoke.optimizer import StokeScheduler as StokeScheduler
    from restoke.memory.census import census as census
    from restoke.memory.measure import measure_memory as measure_memory
    from restoke.optim import OptimizerSpec as OptimizerSpec
    from restoke.session import Session as Session
    from restoke.spec import Spec as Spec
    from restoke.stopping.joint import resume as resume

# where each public name is, loaded on first use: `restoke --help` must not wait for torch
_PLACES = {
    "OptimizerSpec": "restoke.optim",
    "Session": "restoke.session",
    "Spec": "restoke.spec",
    "RestokeError": "restoke.errors",
    "resume": "restoke.stopping.joint",
    "Loader": "restoke.data",
    "measure_memory": "restoke.memory.measure",
    "census": "restoke.memory.census",
    "BucketedDistributedSampler": "restoke.data",
    "Accelerator": "restoke.facades.accelerate.accelerator",
    "Stoke": "restoke.facades.stoke.face",
    "StokeOptimizer": "restoke.facades.stoke.optimizer",
    "StokeScheduler": "restoke.facades.stoke.optimizer",
    "AMPConfig": "restoke.configs",
    "ApexConfig": "restoke.configs",
    "BackendOptions": "restoke.configs",
    "ClipGradConfig": "restoke.configs",
    "ClipGradNormConfig": "restoke.configs",
    "DDPConfig": "restoke.configs",
    "DeepspeedAIOConfig": "restoke.configs",
    "DeepspeedActivationCheckpointingConfig": "restoke.configs",
    "DeepspeedConfig": "restoke.configs",
    "DeepspeedFP16Config": "restoke.configs",
    "DeepspeedFlopsConfig": "restoke.configs",
    "DeepspeedOffloadOptimizerConfig": "restoke.configs",
    "DeepspeedOffloadParamConfig": "restoke.configs",
    "DeepspeedPLDConfig": "restoke.configs",
    "DeepspeedTensorboardConfig": "restoke.configs",
    "DeepspeedZeROConfig": "restoke.configs",
    "DistributedOptions": "restoke.configs",
    "FP16Options": "restoke.configs",
    "FairscaleFSDPConfig": "restoke.configs",
    "FairscaleOSSConfig": "restoke.configs",
    "FairscaleSDDPConfig": "restoke.configs",
    "FSDPConfig": "restoke.configs",
    "HorovodConfig": "restoke.configs",
    "HorovodOps": "restoke.configs",
    "OffloadDevice": "restoke.configs",
    "ParamNormalize": "restoke.configs",
    "TensorConfig": "restoke.configs",
}

__all__ = ["__version__", *_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'restoke' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
