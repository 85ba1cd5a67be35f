"""Settings of DeepSpeed's ZeRO: what is sharded, what is offloaded, and in which portions."""

from __future__ import annotations

from attrs import field
from attrs.validators import and_, ge, le

from restoke.configs.declare import settings
from restoke.configs.enums import Device
from restoke.configs.validate import at_least_one, not_negative


@settings
class DeepspeedOffloadOptimizerConfig:
    """Where the optimizer state lives when it leaves the GPU.

    Attributes:
        buffer_count: Buffers to and from NVMe; at least the tensors an optimizer keeps per parameter (Adam: 4).
        device: "cpu", "nvme" or "none", of `OffloadDevice`.
        fast_init: Whether the state on NVMe is set up the fast way.
        nvme_path: Directory on the NVMe device.
        pin_memory: Whether the CPU memory is page-locked; faster, but it cannot be swapped out.
        pipeline: Whether reading and writing overlap with computing; one of the two below says so by itself.
        pipeline_read: Whether the next state is read while this one is computed.
        pipeline_write: Whether the last state is written while this one is computed.
    """

    buffer_count: int = field(default=4, validator=at_least_one)
    device: Device = "cpu"
    fast_init: bool = False
    nvme_path: str = "/local_nvme"
    pin_memory: bool = False
    pipeline: bool = False
    pipeline_read: bool = False
    pipeline_write: bool = False


@settings
class DeepspeedOffloadParamConfig:
    """Where the parameters live when they leave the GPU; for ZeRO stage 3.

    Attributes:
        buffer_count: Buffers to and from NVMe.
        buffer_size: Size of one of these buffers, in elements.
        device: "cpu", "nvme" or "none", of `OffloadDevice`.
        max_in_cpu: Parameters that stay in CPU memory when the rest is on NVMe, in elements.
        nvme_path: Directory on the NVMe device.
        pin_memory: Whether the CPU memory is page-locked; faster, but it cannot be swapped out.
    """

    buffer_count: int = field(default=5, validator=at_least_one)
    buffer_size: int = field(default=10**8, validator=at_least_one)
    device: Device = "cpu"
    max_in_cpu: int = field(default=10**9, validator=not_negative)
    nvme_path: str = "/local_nvme"
    pin_memory: bool = False


@settings
class DeepspeedZeROConfig:
    """What ZeRO shards, by stage: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.

    Attributes:
        allgather_bucket_size: Portion in which updated parameters are gathered, in elements.
        allgather_partitions: Whether they are gathered by all-gather; else by one broadcast per rank.
        contiguous_gradients: Whether gradients are copied into one buffer as they come; avoids fragmented memory.
        grad_hook: Whether stage 1 reduces by hooks in the backward; DeepSpeed knew it up to 0.6 only.
        ignore_unused_parameters: Whether parameters without a gradient are accepted.
        legacy_stage1: Whether the implementation of stage 1 before DeepSpeed 0.3.17 is used.
        offload_optimizer: Where the optimizer state goes; None keeps it on the GPU.
        offload_param: Where the parameters go, in stage 3; None keeps them on the GPU.
        overlap_comm: Whether gradients are reduced while the backward runs.
        reduce_bucket_size: Portion in which gradients are reduced, in elements.
        reduce_scatter: Whether gradients are reduced to their owners by reduce-scatter; else by all-reduce.
        round_robin_gradients: Whether ranks take turns in copying gradients to the CPU; for stages 1 and 2 with offload.
        stage: 0, 1, 2 or 3.
        stage3_max_live_parameters: Parameters that may be gathered on a GPU at one time, in elements.
        stage3_max_reuse_distance: A parameter that is used again within so many elements stays gathered.
        stage3_prefetch_bucket_size: Parameters that are gathered ahead of their use, in elements.
        stage3_param_persistence_threshold: Parameters below this size are not sharded, in elements.
        stage3_gather_fp16_weights_on_model_save: Whether saving the model gathers the 16-bit weights.
        sub_group_size: Portion in which the optimizer steps, in elements.
    """

    allgather_bucket_size: int = field(default=5 * 10**8, validator=not_negative)
    allgather_partitions: bool = True
    contiguous_gradients: bool = False
    grad_hook: bool = True
    ignore_unused_parameters: bool = True
    legacy_stage1: bool = False
    offload_optimizer: DeepspeedOffloadOptimizerConfig | None = None
    offload_param: DeepspeedOffloadParamConfig | None = None
    overlap_comm: bool = False
    reduce_bucket_size: int = field(default=5 * 10**8, validator=not_negative)
    reduce_scatter: bool = True
    round_robin_gradients: bool = False
    stage: int = field(default=0, validator=and_(ge(0), le(3)))
    stage3_max_live_parameters: int = field(default=10**9, validator=not_negative)
    stage3_max_reuse_distance: int = field(default=10**9, validator=not_negative)
    stage3_prefetch_bucket_size: int = field(default=5 * 10**8, validator=not_negative)
    stage3_param_persistence_threshold: int = field(default=10**6, validator=not_negative)
    stage3_gather_fp16_weights_on_model_save: bool = False
    sub_group_size: int = field(default=10**12, validator=at_least_one)
