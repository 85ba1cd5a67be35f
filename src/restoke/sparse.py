"""Layers whose gradients are sparse tensors, of which no rank can take a shard."""

from __future__ import annotations

from torch import nn

from restoke.errors import SpecError


def refuse_sparse(model: nn.Module, strategy: str) -> None:
    """Raises SpecError: a layer makes gradients that cannot be cut into shards."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            why = f"its gradients are sparse tensors, which {strategy} cannot cut into shards"
            raise SpecError.of("model", f"{name}.sparse", why, "sparse=False in that layer, or strategy=ddp")
