"""Settings of the DeepSpeed engine; those of its ZeRO are in deepspeed_zero.py."""

from __future__ import annotations

from typing import Annotated

from attrs import field
from attrs.validators import and_, ge, gt, le, optional

from restoke.configs.declare import settings
from restoke.configs.deepspeed_zero import DeepspeedZeROConfig
from restoke.configs.enums import Backend
from restoke.configs.validate import at_least_one, not_negative, positive, url


@settings
class DeepspeedAIOConfig:
    """How DeepSpeed reads and writes NVMe, asynchronously.

    Attributes:
        block_size: Size of one request, in bytes.
        ignore_unused_parameters: Whether parameters without a gradient are accepted; DeepSpeed reads it with ZeRO, not here.
        overlap_events: Whether a request is sent before the last one has come back.
        queue_depth: Requests under way at one time.
        single_submit: Whether requests are sent one by one, not as a block.
        thread_count: Threads that share one request.
    """

    block_size: int = field(default=2**20, validator=at_least_one)
    ignore_unused_parameters: bool = True
    overlap_events: bool = True
    queue_depth: int = field(default=8, validator=at_least_one)
    single_submit: bool = False
    thread_count: int = field(default=1, validator=at_least_one)


@settings
class DeepspeedActivationCheckpointingConfig:
    """How DeepSpeed's own activation checkpointing stores what it keeps.

    Attributes:
        contiguous_memory_optimization: Whether kept activations are copied into one buffer; avoids fragmented memory.
        cpu_checkpointing: Whether partitioned activations live on the CPU.
        number_checkpoints: Checkpoints in the model, which that buffer is made for; None where there is no such buffer.
        partition_activations: Whether activations are split over model-parallel ranks.
        profile: Whether the time of each checkpoint's forward and backward is logged.
        synchronize_checkpoint_boundary: Whether the GPU is waited for at each checkpoint.
    """

    contiguous_memory_optimization: bool = False
    cpu_checkpointing: bool = False
    number_checkpoints: int | None = field(default=None, validator=optional(at_least_one))
    partition_activations: bool = False
    profile: bool = False
    synchronize_checkpoint_boundary: bool = False


@settings
class DeepspeedFlopsConfig:
    """What DeepSpeed's profiler of floating-point operations tells, and when.

    Attributes:
        detailed: Whether each module is told.
        module_depth: Depth to which modules are told; -1 is all.
        output_file: File that it is written to; None prints it.
        profile_step: The optimizer step that is profiled.
        top_modules: How many modules of each depth are told, the costliest first.
    """

    detailed: bool = True
    module_depth: int = field(default=-1, validator=ge(-1))
    output_file: str | None = None
    profile_step: int = field(default=1, validator=not_negative)
    top_modules: int = field(default=1, validator=at_least_one)


@settings
class DeepspeedFP16Config:
    """How DeepSpeed scales the loss in float16.

    Two defaults are DeepSpeed's own and not Stoke's: `initial_scale_power` is 16 where Stoke had 32, and `min_loss_scale`
    is 1 where Stoke had 1000, a floor at which DeepSpeed aborts runs that are well.

    Attributes:
        hysteresis: Overflows that it takes to lower the scale.
        initial_scale_power: The first scale is 2 to this power.
        loss_scale: A scale that never changes; 0 means a dynamic one.
        loss_scale_window: Optimizer steps in a row without overflow that it takes to raise the scale.
        min_loss_scale: Floor of the dynamic scale; an overflow at the floor aborts the run.
    """

    hysteresis: int = field(default=2, validator=at_least_one)
    initial_scale_power: int = field(default=16, validator=not_negative)
    loss_scale: float = field(default=0.0, validator=not_negative)
    loss_scale_window: int = field(default=1000, validator=at_least_one)
    min_loss_scale: int = field(default=1, validator=at_least_one)


@settings
class DeepspeedPLDConfig:
    """How layers are dropped progressively as training goes on.

    Attributes:
        theta: Share of the layers that is kept in the end; above 0, at most 1. Lower trains faster and less surely.
        gamma: How fast that share is reached, per optimizer step.
    """

    theta: float = field(default=1.0, validator=and_(gt(0), le(1)))
    gamma: float = field(default=0.001, validator=not_negative)


@settings
class DeepspeedTensorboardConfig:
    """Where DeepSpeed writes its TensorBoard events.

    Attributes:
        output_path: Directory of the events; empty leaves it to DeepSpeed.
        job_name: Name of the run below it.
    """

    output_path: str = ""
    job_name: str = "DeepSpeedJobName"


@settings
class DeepspeedConfig:
    """How the DeepSpeed engine trains. A section that is None is left out of what DeepSpeed is told.

    Attributes:
        activation_checkpointing: Section of its activation checkpointing.
        aio: Section of its access to NVMe.
        auto_mpi_discovery: Whether MPI is asked for rank and address where the launcher set neither.
        disable_allgather: Whether updated parameters are sent by broadcast, not gathered.
        dist_backend: Carrier of the collectives: "gloo", "mpi", or "nccl", which means auto: nccl on CUDA, gloo elsewhere.
        distributed_port: TCP port at which processes meet that MPI has found.
        dump_state: Whether the engine prints its state at the start.
        flops_profiler: Section of its profiler; None does not profile.
        fp16: Section of its loss scaling; None takes the defaults where float16 is asked for.
        fp32_allreduce: Whether gradients are reduced as float32.
        gradient_predivide_factor: What gradients are divided by before they are reduced, if `prescale_gradients`.
        init_method: URL at which the processes meet.
        prescale_gradients: Whether gradients are divided before they are reduced, not after.
        progressive_layer_drop: Section of its dropping of layers; None drops none.
        sparse_gradients: Whether gradients of embeddings are reduced as sparse tensors.
        steps_per_print: Optimizer steps between two lines of progress.
        tensorboard: Section of its TensorBoard events; None writes none.
        verbose: Whether the start of the process group is told.
        wall_clock_breakdown: Whether forward, backward and step are timed; the GPU is waited for.
        zero_optimization: Section of ZeRO; None shards nothing.
    """

    activation_checkpointing: DeepspeedActivationCheckpointingConfig | None = field(
        factory=DeepspeedActivationCheckpointingConfig
    )
    aio: DeepspeedAIOConfig | None = field(factory=DeepspeedAIOConfig)
    auto_mpi_discovery: bool = True
    disable_allgather: bool = False
    dist_backend: Backend = "nccl"
    distributed_port: int = field(default=29500, validator=and_(ge(1), le(65535)))
    dump_state: bool = False
    flops_profiler: DeepspeedFlopsConfig | None = None
    fp16: DeepspeedFP16Config | None = None
    fp32_allreduce: bool = False
    gradient_predivide_factor: float = field(default=1.0, validator=positive)
    init_method: Annotated[str, url] = "env://"
    prescale_gradients: bool = False
    progressive_layer_drop: DeepspeedPLDConfig | None = None
    sparse_gradients: bool = False
    steps_per_print: int = field(default=10, validator=at_least_one)
    tensorboard: DeepspeedTensorboardConfig | None = None
    verbose: bool = True
    wall_clock_breakdown: bool = False
    zero_optimization: DeepspeedZeROConfig | None = field(factory=DeepspeedZeROConfig)
