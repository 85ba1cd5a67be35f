"""Where each name of Accelerate's face is, loaded on first use."""

from __future__ import annotations

_BY_MODULE = {
    "accelerator": "Accelerator",
    "state": "PartialState AcceleratorState GradientState",
    "optimizer": "AcceleratedOptimizer",
    "scheduler": "AcceleratedScheduler",
    "words": "DistributedType PrecisionType RNGType LoggerType DynamoBackend DDPCommunicationHookType ComputeEnvironment",
    "engines": "FullyShardedDataParallelPlugin DeepSpeedPlugin",
    "plugins": (
        "KwargsHandler GradientAccumulationPlugin DataLoaderConfiguration ProjectConfiguration DistributedDataParallelKwargs "
        "GradScalerKwargs InitProcessGroupKwargs AutocastKwargs ProfileKwargs AORecipeKwargs"
    ),
}
PLACES = {name: module for module, names in _BY_MODULE.items() for name in names.split()}
