"""A user's script that says nothing about who starts it: the last argument is the folder where each rank writes what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from restoke import Session, Spec

session = Session(Spec(accumulate=2))
total = torch.tensor(float(session.world.rank + 1))
if dist.is_initialized():
    dist.all_reduce(total)
seen = {
    "strategy": session.spec.strategy,
    "accumulate": session.spec.accumulate,
    "size": session.world.size,
    "local_rank": session.world.local_rank,
    "launcher": session.world.launcher,
    "total": total.item(),
}
Path(sys.argv[-1], f"rank-{session.world.rank}.json").write_text(json.dumps(seen))
