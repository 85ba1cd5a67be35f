"""Settings of Horovod."""

from __future__ import annotations

from attrs import field

from restoke.configs.declare import settings
from restoke.configs.enums import Op
from restoke.configs.validate import positive


@settings
class HorovodConfig:
    """How Horovod combines the gradients of all ranks.

    Attributes:
        compression: Whether gradients travel as float16.
        convert_to_sync_batch_norm: Whether batch norms become Horovod's, whose statistics span all ranks.
        gradient_predivide_factor: What gradients are divided by before they are summed, the rest of the average after it.
        op: "Average", "Sum" or "Adasum", of `HorovodOps`.
        use_fork_server: Whether the data loader's workers start from a fork server.
    """

    compression: bool = False
    convert_to_sync_batch_norm: bool = False
    gradient_predivide_factor: float = field(default=1.0, validator=positive)
    op: Op = "Average"
    use_fork_server: bool = False
