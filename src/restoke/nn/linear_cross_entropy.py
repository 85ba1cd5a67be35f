"""A head over sharded classes and its loss in one module, whose logits never exist as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from restoke.distributed.groups import Group
from restoke.nn.functional.cross_entropy import How
from restoke.nn.functional.linear_cross_entropy import parallel_linear_cross_entropy
from restoke.nn.linear import ParallelLinear


@final
class ParallelLinearCrossEntropy(nn.Module):
    """`torch.nn.LinearCrossEntropyLoss` over a group of ranks; see `parallel_linear_cross_entropy`.

    Args:
        weight: of all classes, shape (num_classes); a buffer.
        chunk: classes at a time.
        group: the ranks that share it; None: the default group.

    Attributes:
        linear: the layer; calling it alone gives logits, as for a top-k accuracy.

    Raises:
        SpecError: a size is below 1, or an option has a value that torch does not know.
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        chunk: int | None = None,
        group: Group | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        How(weight, ignore_index, reduction, label_smoothing)
        self.linear = ParallelLinear(in_features, num_classes, bias, 1, group=group, device=device, dtype=dtype)
        self.register_buffer("weight", weight)
        self.reduction, self.ignore_index, self.label_smoothing, self.chunk = reduction, ignore_index, label_smoothing, chunk

    def forward(self, input: Tensor, target: Tensor, rows: Sequence[int] | None = None) -> Tensor:  # noqa: A002 (torch's name)
        """The loss. Shape of input: (..., in_features), all rows, alike on every rank (`gather_rows`), as their targets."""
        return parallel_linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            shard=self.linear.shards["weight"],
            linear_bias=self.linear.bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            rows=rows,
            chunk=self.chunk,
        )

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing}"
