"""How long a collective of this process's group waits for the other ranks."""

from __future__ import annotations

import datetime

import torch.distributed as dist
from torch.distributed import distributed_c10d

from restoke.facades.accelerate.meeting import TIMEOUT


def wait_at_most(timeout: datetime.timedelta | None) -> float:
    """From now on; None leaves torch's own time. Returns the seconds that ranks wait for each other before they save."""
    if timeout is not None and dist.is_initialized():
        distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)
    return TIMEOUT if timeout is None else timeout.total_seconds()
