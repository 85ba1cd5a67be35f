"""Losses of parts of logits, as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.nn._reduction import legacy_get_string

from restoke.nn.functional.cross_entropy import How, parallel_cross_entropy


@final
class ParallelCrossEntropyLoss(nn.Module):
    """`torch.nn.CrossEntropyLoss` of the whole logits, from the part that each rank holds; see `parallel_cross_entropy`.

    Args:
        weight: of all classes, shape (classes); a buffer, as torch has it.

    Raises:
        SpecError: an option has a value that torch does not know.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = legacy_get_string(size_average, reduce)
        How(weight, ignore_index, reduction, label_smoothing)
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Tensor, target: Tensor, rows: Sequence[int] | None = None) -> Tensor:  # noqa: A002 (torch's name)
        """Logits of all rows of this rank's classes, and targets of all rows; `rows` as for `parallel_cross_entropy`."""
        return parallel_cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            rows=rows,
        )

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing}"
