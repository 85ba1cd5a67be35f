"""Checkpoints of TorchShard's scripts: one file of whole tensors, whatever the number of ranks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NoReturn, SupportsIndex, final

import torch.distributed as dist
from torch import nn

from restoke.errors import CheckpointError
from restoke.nn import state_dict as sharded
from restoke.nn.state_dict import relocate_state_dict

__all__ = ["collect_state_dict", "relocate_state_dict"]


@final
class Elsewhere(OrderedDict[str, Any]):
    """What ranks get that do not have the whole state: nothing, which they cannot save."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raises CheckpointError: a file of it would hold no weights."""
        got = f"rank {dist.get_rank()}'s state"
        raise CheckpointError.of("state_dict", got, "the whole is in rank 0's memory alone", "save it on rank 0")


def collect_state_dict(model: nn.Module, state_dict: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The state with every shard made whole, in the CPU memory of rank 0; every rank calls it. Others get what is not saved.

    Args:
        state_dict: `model.state_dict()` of this rank.
        prefix: what stands before the model's names in it, and in the result.

    Raises:
        CheckpointError: a name is none of the model's, or a tensor is not the part that this rank holds.
    """
    whole = sharded.collect_state_dict(model, state_dict, prefix)
    return whole if whole or not dist.is_initialized() or dist.get_rank() == 0 else Elsewhere()
