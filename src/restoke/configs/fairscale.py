"""Settings of FairScale's sharding: of the optimizer state (OSS), the gradients too (SDDP), the parameters too (FSDP)."""

from __future__ import annotations

from typing import Annotated

from attrs import field
from attrs.validators import optional

from restoke.configs.declare import settings
from restoke.configs.validate import dtype, not_negative, positive


@settings
class FairscaleOSSConfig:
    """How each rank's share of the optimizer state is kept and sent.

    Attributes:
        broadcast_fp16: Whether updated parameters travel as float16.
        force_broadcast_object: Whether a state dict is gathered by FairScale's own broadcast of objects, not torch's.
    """

    broadcast_fp16: bool = False
    force_broadcast_object: bool = False


@settings
class FairscaleSDDPConfig:
    """How each gradient is reduced to the rank that owns it.

    Attributes:
        auto_refresh_trainable: Whether a change of `requires_grad` is noticed by itself.
        broadcast_buffers: Whether rank 0's buffers are sent to all ranks at each forward.
        reduce_buffer_size: Size of the buckets in which gradients are reduced, in elements; 0 reduces each by itself.
        reduce_fp16: Whether gradients travel as float16.
        sync_models_at_startup: Whether rank 0's weights are sent to all ranks at the start.
        warn_on_trainable_params_changed: Whether a change of `requires_grad` gives a warning.
    """

    auto_refresh_trainable: bool = True
    broadcast_buffers: bool = True
    reduce_buffer_size: int = field(default=2**23, validator=not_negative)
    reduce_fp16: bool = False
    sync_models_at_startup: bool = True
    warn_on_trainable_params_changed: bool = True


@settings
class FairscaleFSDPConfig:
    """How parameters are sharded, gathered and offloaded; dtypes are given by name or as torch's own, and kept by name.

    Attributes:
        bucket_cap_mb: Size of the buckets in which gradients are reduced, in MiB; 0 or less turns bucketing off.
        buffer_dtype: Floating dtype that buffers are cast to; None takes `compute_dtype`.
        clear_autocast_cache: Whether each forward drops the weights that autocast keeps.
        compute_dtype: Floating dtype of the gathered parameters; None: float16 under mixed precision, else float32.
        disable_reshard_on_root: Whether the outermost module keeps its parameters gathered after the forward.
        flatten_parameters: Whether the parameters of a module are sharded as one flat tensor.
        force_input_to_fp32: Whether floating inputs of the forward are cast to float32.
        fp32_reduce_scatter: Whether gradients are reduced as float32 under mixed precision.
        gradient_predivide_factor: What gradients are divided by before they are summed; None balances it with the other.
        gradient_postdivide_factor: What gradients are divided by after they are summed; None makes it an average.
        move_grads_to_cpu: Whether reduced gradients go to the CPU; None does so when parameters go.
        move_params_to_cpu: Whether the float32 shards of the parameters live on the CPU.
        no_broadcast_optim_state: Whether gathering leaves out optimizer state that is not sharded; None lets FairScale choose.
        reshard_after_forward: Whether gathered parameters are dropped until the backward; saves memory, costs a gather.
        verbose: Whether the module's repr tells all settings.
    """

    bucket_cap_mb: int = 25
    buffer_dtype: Annotated[str, dtype] | None = None
    clear_autocast_cache: bool = False
    compute_dtype: Annotated[str, dtype] | None = None
    disable_reshard_on_root: bool = True
    flatten_parameters: bool = True
    force_input_to_fp32: bool = False
    fp32_reduce_scatter: bool = False
    gradient_predivide_factor: float | None = field(default=None, validator=optional(positive))
    gradient_postdivide_factor: float | None = field(default=None, validator=optional(positive))
    move_grads_to_cpu: bool | None = None
    move_params_to_cpu: bool = False
    no_broadcast_optim_state: bool | None = False
    reshard_after_forward: bool = True
    verbose: bool = False
