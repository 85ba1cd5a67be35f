"""What the ranks of all groups agree on outside the hot path: values, tensors and short JSON, as the first rank has them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from restoke.comm import sent_json
from restoke.distributed.groups import Group


def is_first(group: Group) -> bool:
    """Whether this is rank 0 of the job, which is the first of its group."""
    return group.ranks[group.rank] == 0


def message_device(group: Group) -> torch.device:
    """Where small messages live: the CPU if the group can send from there, else the rank's accelerator."""
    if group.size == 1 and group.peers is None:
        return torch.device("cpu")
    backends = str(dist.get_backend_config(group.handle if group.size > 1 else group.peers.handle))  # type: ignore[union-attr]
    accelerator = torch.accelerator.current_accelerator()
    if "gloo" in backends or "cpu" in backends or accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def agree_(tensor: Tensor, group: Group) -> Tensor:
    """Rank 0's values on every rank of every group, in place. The group's first ranks hear them from each other first."""
    if group.peers is not None:
        dist.broadcast(tensor, group.peers.ranks[0], group=group.peers.handle)
    if group.size > 1:
        dist.broadcast(tensor, group.ranks[0], group=group.handle)
    return tensor


def agreed_number(number: int, group: Group) -> int:
    """Rank 0's number, of 63 bits at most, on every rank of every group."""
    if group.size == 1 and group.peers is None:
        return number
    device = message_device(group)
    return int(agree_(torch.tensor([number], dtype=torch.int64, device=device), group))


def agreed_json(value: Any, group: Group) -> Any:
    """Rank 0's JSON value on every rank of every group; what the others pass does not matter."""
    return sent_json(value, is_first(group), lambda tensor: agree_(tensor, group), message_device(group))


def everyone(answer: bool, group: Group) -> bool:
    """Whether every rank of every group says yes."""
    if group.size == 1 and group.peers is None:
        return answer
    votes = torch.tensor([int(answer)], device=message_device(group))
    for each in (group, group.peers):
        if each is not None and each.size > 1:
            dist.all_reduce(votes, dist.ReduceOp.MIN, group=each.handle)
    return bool(votes)
