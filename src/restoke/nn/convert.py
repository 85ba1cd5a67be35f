"""Sharing the linear layers and embeddings of a model that was built without restoke."""

from __future__ import annotations

from torch import nn

from restoke.distributed.groups import Group
from restoke.nn.conversion import Names, convert


def convert_parallel_linear(
    module: nn.Module, dim: int | None = None, *, names: Names = None, group: Group | None = None
) -> nn.Module:
    """Turn the model's `nn.Linear` layers into `ParallelLinear`, in place; every rank of the group calls it.

    Values are those of rank 0. Hooks, training mode, `requires_grad`, dtype and device are kept; gradients are not, and an
    optimizer is built afterwards. What is tied stays so: an embedding that shares a weight is turned too. Subclasses of
    `nn.Linear` stay as they are, since others read their weights (`MultiheadAttention.out_proj`); a line says so.

    Args:
        names: patterns (`fnmatch`) of the layers' names; None: all of them.

    Returns:
        The model; the new layer, where the model is a linear layer itself.

    Raises:
        SpecError: a pattern matches no such layer, or a weight is also used by what cannot share it.
    """
    return convert(module, nn.Linear, dim, names, group)


def convert_parallel_embedding(
    module: nn.Module, dim: int | None = None, *, names: Names = None, group: Group | None = None
) -> nn.Module:
    """Turn the model's `nn.Embedding` layers into `ParallelEmbedding`: as `convert_parallel_linear`, with a tied head."""
    return convert(module, nn.Embedding, dim, names, group)
