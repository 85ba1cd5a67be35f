"""Settings of torch's FSDP2, which the strategies zero2, fsdp and hsdp share."""

from __future__ import annotations

from typing import Annotated

from attrs import field
from attrs.validators import optional

from restoke.configs.declare import settings
from restoke.configs.validate import at_least_one, dtype, not_negative


@settings
class FSDPConfig:
    """How parameters are sharded, gathered and their gradients reduced.

    Attributes:
        reduce_dtype: dtype in which gradients are reduced over the ranks; None: float32 under bf16 and fp16, else their own.
        reshard_after_backward: Whether each backward frees the gathered parameters, not the last of a window alone.
        find_unused_parameters: Whether ranks may use different parameters in a step; those unused count as zero gradients.
        convert_to_sync_batch_norm: Whether batch norms become torch's SyncBatchNorm, whose statistics span all ranks.
        replicas: How many groups of ranks hold a copy each (hsdp alone); None: one per machine, two on a single one.
        min_unit: Fewest elements of a unit that is gathered by itself, where a model has no blocks and is cut by size.
    """

    reduce_dtype: Annotated[str, dtype] | None = None
    reshard_after_backward: bool = True
    find_unused_parameters: bool = False
    convert_to_sync_batch_norm: bool = False
    replicas: int | None = field(default=None, validator=optional(at_least_one))
    min_unit: int = field(default=1_000_000, validator=not_negative)
