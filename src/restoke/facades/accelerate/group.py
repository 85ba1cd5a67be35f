"""How long a collective of this process's group waits for the other ranks."""

from __future__ import annotations

import datetime

import torch.distributed as dist
from torch.distributed import distributed_c10d


def wait_at_most(timeout: datetime.timedelta | None) -> None:
    """From now on; None leaves torch's own time."""
    if timeout is not None and dist.is_initialized():
        distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)
