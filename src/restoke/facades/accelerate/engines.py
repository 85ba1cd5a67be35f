"""Accelerate's plugins for sharding engines, each field mapped onto an axis or a setting of the spec, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from attrs import define, field, frozen

from restoke.configs import FSDPConfig
from restoke.errors import SpecError, nearest

SHARDING = {
    "FULL_SHARD": "fsdp",
    "SHARD_GRAD_OP": "zero2",
    "HYBRID_SHARD": "hsdp",
    "NO_SHARD": "ddp",
    "1": "fsdp",
    "2": "zero2",
    "3": "ddp",
    "4": "hsdp",
}


@final
@define(slots=False)
class FullyShardedDataParallelPlugin:
    """Sharding by torch's FSDP2. None leaves a field at what it is here by default.

    `reshard_after_forward=False` keeps gathered parameters until the backward, as `SHARD_GRAD_OP` does. Blocks are found in
    the model; `transformer_cls_names_to_wrap` names their classes. Checkpoints have one format, whatever
    `state_dict_type` says.
    """

    fsdp_version: int | None = None
    sharding_strategy: Any = None
    reshard_after_forward: Any = None
    backward_prefetch: Any = None
    mixed_precision_policy: Any = None
    auto_wrap_policy: Any = None
    cpu_offload: bool | None = None
    ignored_modules: Any = None
    state_dict_type: Any = None
    state_dict_config: Any = None
    optim_state_dict_config: Any = None
    limit_all_gathers: bool | None = None
    use_orig_params: bool | None = None
    param_init_fn: Any = None
    sync_module_states: bool | None = None
    forward_prefetch: bool | None = None
    activation_checkpointing: bool | None = None
    cpu_ram_efficient_loading: bool | None = None
    transformer_cls_names_to_wrap: list[str] | None = None
    min_num_params: int | None = None


@final
@define(slots=False)
class DeepSpeedPlugin:
    """DeepSpeed's ZeRO. None leaves a field at what it is here by default."""

    hf_ds_config: Any = None
    gradient_accumulation_steps: int | None = None
    gradient_clipping: float | None = None
    zero_stage: int | None = None
    is_train_batch_min: bool = True
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool | None = None
    zero3_save_16bit_model: bool | None = None
    transformer_moe_cls_names: str | None = None
    enable_msamp: bool = False
    msamp_opt_level: str | None = None


@frozen(kw_only=True)
class Engine:
    """What a plugin declares: axes of the spec, settings, and the classes of the blocks."""

    axes: Mapping[str, Any] = field(factory=dict)
    settings: tuple[Any, ...] = ()
    block_classes: tuple[str, ...] = ()


def engine_of(plugin: Any) -> Engine:
    """What the plugin declares; nothing where it is None.

    Raises:
        SpecError: a field of it has no counterpart here, or it is no plugin that is known.
    """
    if plugin is None:
        return Engine()
    if isinstance(plugin, FullyShardedDataParallelPlugin):
        return _fsdp(plugin)
    if isinstance(plugin, DeepSpeedPlugin):
        return _deepspeed(plugin)
    why = "there is no such plugin"
    raise SpecError.of("plugin", type(plugin).__name__, why, "spec=Spec(strategy='fsdp', tensor=2, ...)")


def _fsdp(plugin: FullyShardedDataParallelPlugin) -> Engine:
    _refuse(
        plugin,
        "FullyShardedDataParallelPlugin",
        backward_prefetch=((None, "BACKWARD_PRE"), "FSDP2 orders its gathering itself"),
        forward_prefetch=((None, False), "FSDP2 orders its gathering itself"),
        mixed_precision_policy=((None,), "the precision is declared once, for every strategy: mixed_precision"),
        ignored_modules=((None,), "every parameter is sharded"),
        param_init_fn=((None,), "a model on the meta device is filled from a file"),
        use_orig_params=((None, True), "FSDP2 keeps the model's own parameters"),
        limit_all_gathers=((None, True), "FSDP2 always limits them"),
        sync_module_states=((None, True), "every rank starts with rank 0's weights"),
        optim_state_dict_config=((None,), "checkpoints have one format"),
        state_dict_config=((None,), "checkpoints have one format"),
    )
    axes: dict[str, Any] = {"strategy": _sharding(plugin)}
    if plugin.cpu_offload:
        axes["offload"] = "cpu"
    if plugin.activation_checkpointing:
        axes["remat"] = "blocks"
    settings = () if plugin.min_num_params is None else (FSDPConfig(min_unit=plugin.min_num_params),)
    return Engine(axes=axes, settings=settings, block_classes=tuple(plugin.transformer_cls_names_to_wrap or ()))


def _sharding(plugin: FullyShardedDataParallelPlugin) -> str:
    for name in ("sharding_strategy", "reshard_after_forward"):
        value = getattr(plugin, name)
        if value is None:
            continue
        if isinstance(value, bool):
            return SHARDING["FULL_SHARD" if value else "SHARD_GRAD_OP"]
        word = str(getattr(value, "name", value)).upper()
        if word not in SHARDING:
            raise SpecError.of(f"FullyShardedDataParallelPlugin.{name}", value, "there is no such", nearest(word, SHARDING))
        return SHARDING[word]
    return SHARDING["FULL_SHARD"]


def _deepspeed(plugin: DeepSpeedPlugin) -> Engine:
    _refuse(
        plugin,
        "DeepSpeedPlugin",
        hf_ds_config=((None,), "its settings are DeepspeedConfig's"),
        transformer_moe_cls_names=((None,), "nothing here is told of experts"),
        enable_msamp=((False,), "MS-AMP is no longer maintained"),
        msamp_opt_level=((None,), "MS-AMP is no longer maintained"),
        is_train_batch_min=((True,), "batches are those of the loaders"),
        zero3_init_flag=((None, False), "a model on the meta device is filled from a file"),
        zero3_save_16bit_model=((None, False), "a checkpoint is exported: restoke checkpoint export"),
        offload_param_device=((None, "none"), "it is a field of DeepspeedZeROConfig"),
        offload_optimizer_nvme_path=((None, "none"), "it is a field of DeepspeedOffloadOptimizerConfig"),
        offload_param_nvme_path=((None, "none"), "it is a field of DeepspeedOffloadParamConfig"),
    )
    axes: dict[str, Any] = {"strategy": f"deepspeed-{2 if plugin.zero_stage is None else plugin.zero_stage}"}
    if plugin.gradient_accumulation_steps is not None:
        axes["accumulate"] = plugin.gradient_accumulation_steps
    if plugin.gradient_clipping is not None:
        axes["clip"] = plugin.gradient_clipping
    if plugin.offload_optimizer_device not in (None, "none"):
        axes["offload"] = plugin.offload_optimizer_device
    return Engine(axes=axes)


def _refuse(plugin: Any, name: str, **known: tuple[tuple[Any, ...], str]) -> None:
    """Raises SpecError where a field is none of what alone is known here."""
    for key, (values, why) in known.items():
        value = getattr(plugin, key)
        if value not in values and str(getattr(value, "name", value)) not in values:
            raise SpecError.of(f"{name}.{key}", value, why, "leave it out")
