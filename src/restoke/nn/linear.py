"""A linear layer of which each rank of a group holds some outputs or some inputs."""

from __future__ import annotations

import math
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from restoke.distributed.groups import Group, get_group
from restoke.distributed.shards import Shard
from restoke.nn.alike import check_alike
from restoke.nn.conversion import KINDS, Kind, Names, convert
from restoke.nn.described import Part
from restoke.nn.functional.linear import parallel_linear
from restoke.nn.init import alike_, sharded_
from restoke.nn.owned import adopt, counted, empty_part, say_of
from restoke.nn.tags import checked_dim


@final
class ParallelLinear(nn.Module):
    """`torch.nn.Linear` over a group of ranks.

    Every rank of the group builds it, at the same place. What it begins with does not depend on the group's size, and is
    alike for ranks of unlike seeds (rank 0's counts); it is drawn as `torch.nn.Linear` draws. Shards
    are balanced and may be empty.

    Args:
        dim: None: the plain layer. 1 or -1, by columns: each rank has some of the outputs, and gives that part of the last
            dimension, described; its input is whole. 0, by rows: each rank has some of the inputs; the input is whole, or
            the part that a layer by columns gave, and the output is whole.
        group: the ranks that share it; None: the default group.

    Attributes:
        weight: shape (outputs, inputs) of this rank.
        bias: shape (outputs of this rank); by rows it is whole, alike on every rank.
        in_features, out_features: of the whole.

    Raises:
        SpecError: a size is below 1, or `dim` is another.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dim: int | None = None,
        *,
        group: Group | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = counted("in_features", in_features), counted("out_features", out_features)
        self.dim, self.group = checked_dim(dim), get_group(group)
        self.shards = linear_shards(in_features, out_features, dim, self.group)
        made = {"device": device, "dtype": dtype}
        adopt(self, "weight", nn.Parameter(empty_part((out_features, in_features), self.shards["weight"], **made)))
        adopt(self, "bias", nn.Parameter(empty_part((out_features,), self.shards["bias"], **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the values anew; every rank of the group calls it."""
        bound = 1 / math.sqrt(self.in_features)
        if self.dim is None:
            nn.Linear.reset_parameters(self)  # type: ignore[arg-type]
            return
        sharded_(nn.init.uniform_, self.weight, cast(Shard, self.shards["weight"]), -bound, bound)
        if self.bias is not None and (shard := self.shards["bias"]) is not None:
            sharded_(nn.init.uniform_, self.bias, shard, -bound, bound)
        elif self.bias is not None:
            alike_(nn.init.uniform_, self.bias, self.group, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        if self.dim is not None and not isinstance(input, Part):
            check_alike(self, input, self.group)
        return parallel_linear(input, self.weight, self.bias, self.dim, shard=self.shards["weight"], group=self.group)

    @classmethod
    def convert_parallel_linear(
        cls, module: nn.Module, dim: int | None = None, *, names: Names = None, group: Group | None = None
    ) -> nn.Module:
        """See `restoke.nn.convert_parallel_linear`."""
        return convert(module, nn.Linear, dim, names, group)

    def extra_repr(self) -> str:
        shared = f", dim={self.dim}, ranks={self.group.size}" if self.dim is not None else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{shared}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        say_of(self)


def linear_shards(in_features: int, out_features: int, dim: int | None, group: Group) -> dict[str, Shard | None]:
    """Which part of its weight and bias each rank holds."""
    if dim is None:
        return {"weight": None, "bias": None}
    if dim == 0:
        return {"weight": Shard(group, 1, in_features), "bias": None}
    return {"weight": Shard(group, 0, out_features), "bias": Shard(group, 0, out_features)}


KINDS[nn.Linear] = Kind(ParallelLinear, ("in_features", "out_features"), linear_shards)
