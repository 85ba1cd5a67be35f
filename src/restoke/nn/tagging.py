"""A layer that says of an activation, after what lost it, of which whole it is a part."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from restoke.distributed.groups import Group, get_group
from restoke.nn.tags import checked_dim, register_parallel_dim


@final
class RegisterParallelDim(nn.Module):
    """The identity, whose output is described as a part along `dim`; None: as a whole. Takes a tensor, or a list or tuple.

    Args:
        size: of the whole along `dim`. None: as it is known, else the ranks tell their lengths at each call, and wait.
        group: the ranks that hold the parts; None: the default group.
    """

    def __init__(self, dim: int | None = None, size: int | None = None, *, group: Group | None = None) -> None:
        super().__init__()
        self.dim, self.size, self.group = checked_dim(dim), size, get_group(group)

    def forward(self, input: Any) -> Any:  # noqa: A002 (torch's name)
        if isinstance(input, (list, tuple)):
            return type(input)([self.forward(each) for each in input])
        if not isinstance(input, Tensor):
            return input
        return register_parallel_dim(input.view_as(input), self.dim, size=self.size, group=self.group)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, size={self.size}"
