"""A template of a parallel layer: a linear map, written from collectives, whose outputs the ranks of a group share.

Copy it, and put your own arithmetic where `F.linear` is. What makes a layer parallel is said in five places, (1) to (5).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke.distributed import Group, Shard, copy, get_group
from restoke.nn import describe, init, register_shard


class TemplateLinear(nn.Module):
    """`nn.Linear` without a bias: each rank has some of the outputs.

    Args:
        group: the ranks that share it; None: the default group.
    """

    def __init__(self, in_features: int, out_features: int, group: Group | None = None) -> None:
        super().__init__()
        # (1) Which part is here: some rows of the weight. Parts differ by one row at most, and may be empty.
        self.shard = Shard(get_group(group), 0, out_features)
        self.weight = nn.Parameter(torch.empty(self.shard.length, in_features))
        # (2) Say so: then gradients are neither averaged with other ranks' parts nor clipped by unlike norms, and a checkpoint
        # holds the whole weight, for any number of ranks.
        register_shard(self, "weight", self.shard)
        # (3) Values that do not depend on how many ranks there are.
        init.sharded_(nn.init.xavier_uniform_, self.weight, self.shard)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        # (4) The input is whole, and alike on every rank. What each rank's part does to its gradient, `copy` sums up.
        out = F.linear(copy(input, self.shard.group), self.weight)
        # (5) The output is a part of its last dimension. Whatever takes it for a whole is refused.
        return describe(out, self.shard.along(-1)) if self.shard.group.size > 1 else out
