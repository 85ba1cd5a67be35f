"""A dropout layer for activations that ranks hold alike, or of which each has a part."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from restoke.distributed.groups import Group, get_group
from restoke.errors import SpecError
from restoke.nn.functional.dropout import parallel_dropout


@final
class ParallelDropout(nn.Module):
    """`torch.nn.Dropout` between layers that ranks share: alike where they hold the same, independent on parts.

    Raises:
        SpecError: `p` is not within 0 to 1.
    """

    def __init__(self, p: float = 0.5, *, group: Group | None = None) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise SpecError.of("p", p, "it is the probability to be dropped", "0 to 1")
        self.p, self.group = p, get_group(group)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        return parallel_dropout(input, self.p, self.training, group=self.group)

    def extra_repr(self) -> str:
        return f"p={self.p}"
