"""The last layer of a face recogniser: scaled cosines to class vectors of which each rank holds some, with a margin."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from restoke.distributed.groups import Group, get_group
from restoke.distributed.shards import Shard
from restoke.nn.alike import check_alike
from restoke.nn.functional.margin_linear import parallel_margin_linear
from restoke.nn.init import sharded_
from restoke.nn.margins import ArcFace, Margin
from restoke.nn.owned import counted
from restoke.nn.registry import register_shard

SPREAD = 0.01  # of the class vectors' elements at first


@final
class ParallelMarginLinear(nn.Module):
    """Cosines between features and class vectors, times a scale, with a margin where a row meets its target.

    Its output goes into `parallel_cross_entropy`, or `parallel_topk`. Every rank of the group builds it, at the same place;
    what it begins with does not depend on the group's size. Arithmetic is in float32 at least, also under autocast.

    Args:
        margin: `ArcFace`, `CosFace`, `CombinedMargin`, or any function of target cosines, element by element; None:
            `ArcFace(0.5)`.
        scale: s of the papers.
        group: the ranks that share it; None: the default group.

    Attributes:
        weight: shape (classes of this rank, in_features).

    Raises:
        SpecError: a size is below 1.
    """

    weight: nn.Parameter

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        margin: Margin | None = None,
        scale: float = 64.0,
        *,
        group: Group | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.num_classes = counted("in_features", in_features), counted("num_classes", num_classes)
        self.margin: Margin = ArcFace() if margin is None else margin
        self.scale = scale
        self.shard = Shard(get_group(group), 0, num_classes)
        self.weight = nn.Parameter(torch.empty(self.shard.length, in_features, device=device, dtype=dtype))
        register_shard(self, "weight", self.shard)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the values anew; every rank of the group calls it."""
        sharded_(nn.init.normal_, self.weight, self.shard, 0.0, SPREAD)

    def forward(self, input: Tensor, target: Tensor | None = None) -> Tensor:  # noqa: A002 (torch's name)
        """Logits of all rows: shape (rows, classes of this rank), a described part.

        Args:
            input: features of all rows, alike on every rank of the group (`gather_rows`).
            target: numbers of their classes, int64; None: no margin, as when testing.
        """
        check_alike(self, input, self.shard.group)
        how = {"shard": self.shard, "margin": self.margin, "scale": self.scale}
        return parallel_margin_linear(input, self.weight, target, **how)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, num_classes={self.num_classes}"
        return f"{sizes}, margin={self.margin}, scale={self.scale:g}, ranks={self.shard.group.size}"
