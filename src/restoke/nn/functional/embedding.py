"""A look-up in a table of which each rank holds some rows (the vocabulary) or some columns (the width)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from restoke.distributed.collectives import all_reduce, gather, reduce
from restoke.distributed.groups import Group
from restoke.distributed.shards import Shard
from restoke.errors import DataError, SpecError
from restoke.nn.functional.weights import shard_of_weight


class _Options(NamedTuple):
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool


def parallel_embedding(
    input: Tensor,  # noqa: A002 (torch's name)
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    dim: int | None = None,
    *,
    shard: Shard | None = None,
    group: Group | None = None,
) -> Tensor:
    """The rows of the whole table that the ids name, whole, on every rank.

    Args:
        input: ids of any shape, alike on every rank, counted over the whole table, as `padding_idx` is.
        weight: this rank's part: shape (rows of this rank, embedding_dim) for `dim=0`, (num_embeddings, columns of this rank)
            for `dim=1` and -1, the whole for None.
        shard: of which whole the weight is the part; None: as for `parallel_linear`.

    Returns:
        Shape (*input.shape, embedding_dim).

    Raises:
        DataError: an id is not in the table: on every rank (on a GPU, by torch's assertion in the kernel's stream).
    """
    shard = shard_of_weight(weight, dim, 1, shard, group)
    if shard is None:
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    rows = shard.size if dim == 0 else weight.shape[0]
    _check_ids(input, rows)
    options = _Options(from_front(padding_idx, rows), max_norm, norm_type, scale_grad_by_freq, sparse)
    return _by_rows(input, weight, shard, options) if dim == 0 else _by_columns(input, weight, shard, options)


def from_front(padding_idx: int | None, rows: int) -> int | None:
    """The row, counted from the first one. Raises SpecError where the table has none such."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise SpecError.of("padding_idx", padding_idx, f"the whole table has {rows} rows", f"-{rows} to {rows - 1}")
    return padding_idx % rows


def _check_ids(ids: Tensor, rows: int) -> None:
    if ids.dtype not in (torch.int64, torch.int32):
        raise DataError.of("input", ids.dtype, "ids are whole numbers", "torch.int64 or torch.int32")
    if ids.device.type == "cpu":
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            why = f"the table has {rows} rows"
            raise DataError.of("input", f"ids {int(ids.min())} to {int(ids.max())}", why, f"ids 0 to {rows - 1}")
    elif not ids.is_meta:
        torch._assert_async(((ids >= 0) & (ids < rows)).all(), f"ids must be 0 to {rows - 1}")


def _by_rows(ids: Tensor, weight: Tensor, shard: Shard, options: _Options) -> Tensor:
    local = ids - shard.start
    own = (local >= 0) & (local < shard.length)
    padding = None if options.padding_idx is None else options.padding_idx - shard.start
    padding = padding if padding is not None and 0 <= padding < shard.length else None
    if shard.length and not (options.max_norm is not None or options.scale_grad_by_freq or options.sparse):
        rows = F.embedding(torch.where(own, local, 0), weight, padding)
        return reduce(torch.where(own.unsqueeze(-1), rows, 0), shard.group)
    # a row that nobody asked for must not be renormalised, counted or stepped: only own ids may reach the table
    found = F.embedding(local[own], weight, padding, *options[1:])
    rows = found.new_zeros((*ids.shape, weight.shape[1])).masked_scatter(own.unsqueeze(-1), found)
    return reduce(rows, shard.group)


def _by_columns(ids: Tensor, weight: Tensor, shard: Shard, options: _Options) -> Tensor:
    if options.max_norm is not None:
        _renormalise(ids, weight, shard.group, options.max_norm, options.norm_type)
    rows = F.embedding(ids, weight, options.padding_idx, None, 2.0, options.scale_grad_by_freq, options.sparse)
    return gather(rows, -1, shard.group, shard.size)


@torch.no_grad()
def _renormalise(ids: Tensor, weight: Tensor, group: Group, max_norm: float, norm_type: float) -> None:
    """In place, each row that is looked up and whose norm over all ranks' columns is too large."""
    if not norm_type > 0:
        raise SpecError.of("norm_type", norm_type, "rows that are cut are measured by a positive power", "2.0, or dim=0")
    asked = ids.unique()  # type: ignore[no-untyped-call]
    wide = weight[asked].to(torch.promote_types(weight.dtype, torch.float32))
    mine = torch.linalg.vector_norm(F.pad(wide, (0, 1)), norm_type, -1)  # a column of zeros: the part may be empty
    if math.isinf(norm_type):
        norms = all_reduce(mine, group, dist.ReduceOp.MAX)
    else:
        norms = all_reduce(mine**norm_type, group) ** (1 / norm_type)
    scale = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1).to(weight.dtype)
    weight[asked] *= scale.unsqueeze(-1)
