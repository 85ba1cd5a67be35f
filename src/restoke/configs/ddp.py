"""Settings of torch's DistributedDataParallel, and of how its processes meet."""

from __future__ import annotations

from typing import Annotated, Any

from attrs import field
from attrs.validators import optional

from restoke.configs.declare import settings
from restoke.configs.enums import Backend
from restoke.configs.validate import at_least_one, not_negative, text, url
from restoke.errors import SpecError

COMM_HOOKS = ("bf16", "fp16", "powersgd")


def hook(value: Any, axis: str) -> str:
    """The name of one of torch's hooks, or where the user's own is."""
    name = text(value, axis)
    module, _, function = name.partition(":")
    if name.lower() in COMM_HOOKS:
        return name.lower()
    if not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise SpecError.of(axis, value, "there is no such hook", f"one of: {', '.join(COMM_HOOKS)}, or module:function")
    return name


@settings
class DDPConfig:
    """How gradients are averaged between processes that each hold the whole model.

    Attributes:
        local_rank: Index of this process's device on its machine; None takes the launcher's word, which is best.
        auto_mpi_discovery: For Stoke's scripts, of no effect: ranks are always read from every launcher.
        convert_to_sync_batch_norm: Whether batch norms become torch's SyncBatchNorm, whose statistics span all ranks.
        backend: Carrier of the collectives: "gloo", "mpi", or "nccl", which means auto: nccl on CUDA, gloo elsewhere.
        broadcast_buffers: Whether rank 0's buffers are sent to all ranks at each forward.
        bucket_cap_mb: Size of the buckets in which gradients are reduced, in MiB.
        find_unused_parameters: Whether each step looks for parameters that got no gradient; costs time.
        gradient_as_bucket_view: Whether gradients live in the buckets; saves a copy and its memory.
        init_method: URL at which the processes meet.
        no_sync: Whether gradients are reduced in the last micro-batch of an accumulation only.
        static_graph: Whether the graph of the model never changes, so that DDP may plan on it.
        comm_hook: How gradients are compressed: "bf16", "fp16", "powersgd", or "module:function"; None sends them as they are.
    """

    local_rank: int | None = field(default=None, validator=optional(not_negative))
    auto_mpi_discovery: bool = False
    convert_to_sync_batch_norm: bool = False
    backend: Backend = "nccl"
    broadcast_buffers: bool = True
    bucket_cap_mb: int = field(default=25, validator=at_least_one)
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    init_method: Annotated[str, url] = "env://"
    no_sync: bool = True
    static_graph: bool = False
    comm_hook: Annotated[str, hook] | None = None
