"""Where each name of Accelerate's face is, and what Accelerate's own modules become: each name is loaded on first use."""

from __future__ import annotations

_CLASSES = {
    "accelerator": "Accelerator",
    "state": "PartialState AcceleratorState GradientState",
    "optimizer": "AcceleratedOptimizer",
    "scheduler": "AcceleratedScheduler",
    "local_sgd": "LocalSGD",
    "words": (
        "DistributedType PrecisionType RNGType LoggerType DynamoBackend DDPCommunicationHookType ComputeEnvironment SaveFormat"
    ),
    "engines": "FullyShardedDataParallelPlugin DeepSpeedPlugin",
    "plugins": (
        "KwargsHandler GradientAccumulationPlugin DataLoaderConfiguration ProjectConfiguration DistributedDataParallelKwargs "
        "GradScalerKwargs InitProcessGroupKwargs AutocastKwargs ProfileKwargs AORecipeKwargs"
    ),
    "tracking": "GeneralTracker",
}
_FUNCTIONS = {
    "operations": (
        "DistributedOperationException broadcast broadcast_object_list concatenate convert_outputs_to_fp32 convert_to_fp32 "
        "copy_tensor_to_devices find_batch_size gather gather_object get_data_structure get_shape honor_type "
        "ignorant_find_batch_size initialize_tensors is_namedtuple is_tensor_information is_torch_tensor listify "
        "pad_across_processes pad_input_tensors recursively_apply reduce send_to_device slice_tensors"
    ),
    "random": "set_seed synchronize_rng_state synchronize_rng_states",
    "memory": "find_executable_batch_size release_memory clear_device_cache should_reduce_batch_size",
    "launchers": "notebook_launcher debug_launcher",
    "data_loader": "prepare_data_loader skip_first_batches",
    "environment": (
        "str_to_bool parse_flag_from_env parse_choice_from_env get_int_from_env clear_environment patch_environment"
    ),
    "availability": (
        "is_cuda_available is_xpu_available is_mps_available is_rocm_available is_bf16_available is_fp16_available "
        "is_fp8_available check_cuda_fp8_capability is_habana_gaudi1 compare_versions is_torch_version is_python_version"
    ),
    "unwrapping": "extract_model_from_parallel save wait_for_everyone",
    "logging": "get_logger",
}
PLACES = {name: module for found in (_CLASSES, _FUNCTIONS) for module, names in found.items() for name in names.split()}

HOME = "restoke.facades.accelerate"
# Accelerate's modules that stand below the package here as well, and where their names are
VIRTUAL: dict[str, str] = {
    "utils": "everything",
    "utils.dataclasses": "everything",
    "utils.constants": "everything",
    "utils.other": "everything",
    "utils.imports": "availability",
    "utils.versions": "availability",
    "utils.environment": "environment",
    "utils.operations": "operations",
    "utils.random": "random",
    "utils.memory": "memory",
}
MODULES: dict[str, str] = {
    "accelerate": f"{HOME}.as_written",
    "accelerate.accelerator": f"{HOME}.as_written",
    **{
        f"accelerate.{name}": f"{HOME}.{name}"
        for name in "state optimizer scheduler data_loader logging tracking launchers local_sgd".split()
    },
    **{f"accelerate.{name}": f"{HOME}.{module}" for name, module in VIRTUAL.items()},
}
