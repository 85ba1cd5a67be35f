"""Accelerate's small configuration classes: what a script hands to the constructor beside plain values."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable
from typing import Any, final

import attrs
from attrs import define, field

from restoke.errors import SpecError
from restoke.facades.accelerate.words import DDPCommunicationHookType


class KwargsHandler:
    """A group of keywords for something that is made behind the scenes."""

    def to_dict(self) -> dict[str, Any]:
        return attrs.asdict(self, recurse=False)  # type: ignore[arg-type]

    def to_kwargs(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        default = type(self)()
        return {name: value for name, value in self.to_dict().items() if value != vars_of(default)[name]}


def vars_of(handler: KwargsHandler) -> dict[str, Any]:
    """Its fields."""
    return handler.to_dict()


def _at_least_one(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or value < 1):
        why = "a window has at least one micro-batch"
        raise SpecError.of("gradient_accumulation_steps", value, why, "a whole number from 1")


@final
@define(slots=False)
class GradientAccumulationPlugin(KwargsHandler):
    """How micro-batches make windows.

    Attributes:
        num_steps: Micro-batches of a window; None: the constructor's `gradient_accumulation_steps`.
        adjust_scheduler: Of no effect, as in Accelerate: schedulers step with the optimizer.
        sync_with_dataloader: Whether the end of a loader ends the window, however short.
        sync_each_batch: Whether gradients are reduced in each micro-batch, not at the end of the window alone.
    """

    num_steps: int | None = field(default=None, validator=_at_least_one)
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False


@final
@define(slots=False)
class DataLoaderConfiguration:
    """How batches are dealt to ranks: see `restoke.data.Dealing`, whose fields these are, and torchdata's stateful loaders:
    ours all are, so `use_stateful_dataloader` changes nothing."""

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False


@final
@define(slots=False)
class ProjectConfiguration:
    """Where a project keeps its files. With `automatic_checkpoint_naming`, `save_state` counts checkpoints in
    `project_dir/checkpoints`, of which the newest `total_limit` stay."""

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __attrs_post_init__(self) -> None:
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | None = None) -> None:
        """Where `logging_dir` is not given, it is the project's own."""
        self.project_dir = None if project_dir is None else os.fspath(project_dir)
        if self.logging_dir is None:
            self.logging_dir = self.project_dir


@final
@define(slots=False)
class DistributedDataParallelKwargs(KwargsHandler):
    """Settings of torch's DistributedDataParallel: see `restoke.DDPConfig`."""

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: str = DDPCommunicationHookType.NO
    comm_wrapper: str = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(factory=dict)


@final
@define(slots=False)
class GradScalerKwargs(KwargsHandler):
    """Settings of torch's GradScaler: see `restoke.AMPConfig`."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@final
@define(slots=False)
class InitProcessGroupKwargs(KwargsHandler):
    """How processes meet, and how long a collective waits for the others."""

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: datetime.timedelta | None = None


@final
@define(slots=False)
class AutocastKwargs(KwargsHandler):
    """For `accelerator.autocast`: whether it is on."""

    enabled: bool = True
    cache_enabled: bool | None = None


@final
@define(slots=False)
class ProfileKwargs(KwargsHandler):
    """Settings of torch's profiler; with `output_trace_dir` each rank writes `profile_RANK.json` there."""

    activities: Iterable[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None


@final
@define(slots=False)
class AORecipeKwargs(KwargsHandler):
    """Settings of torchao's float8, which is what `fp8` is here."""

    config: Any = None
    module_filter_func: Callable[..., bool] | None = None
    pad_inner_dim: bool | None = None
    enable_fsdp_float8_all_gather: bool | None = None
