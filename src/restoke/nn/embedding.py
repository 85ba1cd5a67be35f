"""A table of embeddings of which each rank of a group holds some rows or some columns."""

from __future__ import annotations

from typing import Any, cast, final

import torch
from torch import Tensor, nn

from restoke.distributed.groups import Group, get_group
from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.alike import check_alike
from restoke.nn.conversion import KINDS, Kind, Names, convert
from restoke.nn.functional.embedding import from_front, parallel_embedding
from restoke.nn.init import sharded_
from restoke.nn.owned import adopt, counted, empty_part, say_of
from restoke.nn.tags import checked_dim


@final
class ParallelEmbedding(nn.Module):
    """`torch.nn.Embedding` over a group of ranks: ids in, whole rows out, alike on every rank.

    Every rank of the group builds it, at the same place. What it begins with does not depend on the group's size, and is
    alike for ranks of unlike seeds. All of torch's options hold for the whole table.

    Args:
        padding_idx: a row of the whole table.
        dim: None: the plain layer. 0: each rank has some of the rows; 1 or -1: some of the columns.
        group: the ranks that share it; None: the default group.
        _weight: the whole table, of which the layer keeps its part.

    Attributes:
        weight: shape (rows, columns) of this rank.

    Raises:
        SpecError: a size is below 1, `padding_idx` is not in the table, or `dim` is another.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        dim: int | None = None,
        *,
        group: Group | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        _freeze: bool = False,
    ) -> None:
        super().__init__()
        self.num_embeddings = counted("num_embeddings", num_embeddings)
        self.embedding_dim = counted("embedding_dim", embedding_dim)
        self.padding_idx = from_front(padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.dim, self.group = checked_dim(dim), get_group(group)
        self.shards = embedding_shards(num_embeddings, embedding_dim, dim, self.group)
        shape = (num_embeddings, embedding_dim)
        made = {"device": device, "dtype": dtype}
        part = empty_part(shape, self.shards["weight"], **made) if _weight is None else self._of_whole(_weight, shape)
        adopt(self, "weight", nn.Parameter(part, requires_grad=not _freeze))
        if _weight is None:
            self.reset_parameters()

    def _of_whole(self, whole: Tensor, shape: tuple[int, int]) -> Tensor:
        if tuple(whole.shape) != shape:
            raise SpecError.of("_weight", tuple(whole.shape), "it is the whole table", f"shape {shape}")
        shard = self.shards["weight"]
        return whole if shard is None or shard.group.size == 1 else shard.of(whole.detach()).clone()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, dim: int | None = None, **options: Any
    ) -> ParallelEmbedding:
        """The layer with this whole table, shape (num_embeddings, embedding_dim), alike on every rank.

        Args:
            options: those of the layer.
        """
        rows, columns = embeddings.shape
        return cls(rows, columns, padding_idx, dim=dim, _weight=embeddings, _freeze=freeze, **options)

    def reset_parameters(self) -> None:
        """Draw the values anew; every rank of the group calls it."""
        if self.dim is None:
            nn.Embedding.reset_parameters(self)  # type: ignore[arg-type]
            return
        sharded_(nn.init.normal_, self.weight, cast(Shard, self.shards["weight"]))
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self) -> None:
        shard = self.shards["weight"]
        if self.padding_idx is None:
            return
        row = self.padding_idx - (shard.start if shard is not None and self.dim == 0 else 0)
        if 0 <= row < self.weight.shape[0]:
            with torch.no_grad():
                self.weight[row].zero_()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        if self.dim is not None:
            check_alike(self, input, self.group)
        options = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse, self.dim)
        return parallel_embedding(input, self.weight, *options, shard=self.shards["weight"], group=self.group)

    @classmethod
    def convert_parallel_embedding(
        cls, module: nn.Module, dim: int | None = None, *, names: Names = None, group: Group | None = None
    ) -> nn.Module:
        """See `restoke.nn.convert_parallel_embedding`."""
        return convert(module, nn.Embedding, dim, names, group)

    def extra_repr(self) -> str:
        said = [f"{self.num_embeddings}, {self.embedding_dim}"]
        said += [] if self.padding_idx is None else [f"padding_idx={self.padding_idx}"]
        said += [] if self.dim is None else [f"dim={self.dim}, ranks={self.group.size}"]
        return ", ".join(said)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        say_of(self)


def embedding_shards(rows: int, columns: int, dim: int | None, group: Group) -> dict[str, Shard | None]:
    """Which part of its table each rank holds."""
    if dim is None:
        return {"weight": None}
    return {"weight": Shard(group, 0, rows) if dim == 0 else Shard(group, 1, columns)}


KINDS[nn.Embedding] = Kind(ParallelEmbedding, ("num_embeddings", "embedding_dim"), embedding_shards)
