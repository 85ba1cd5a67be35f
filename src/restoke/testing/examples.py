"""Models small enough to compare bit by bit, and their data: what the contract suite trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@frozen
class Example:
    """A model, its batches and its loss. `per_sample`: one big batch trains as its pieces do (batch norm forbids it)."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    per_sample: bool = True
    plan: Mapping[str, str] = {}  # how its layers are sharded where `tensor` is more than 1

    def batches(self, steps: int, size: int) -> list[Batch]:
        """`steps` global batches of `size` samples, the same in every process."""
        generator = torch.Generator().manual_seed(1)
        return [self.batch(generator, size) for _ in range(steps)]


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


@final
class _Tied(nn.Module):
    """An embedding whose weight is the head's too, and a frozen layer between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.mix(self.frozen(self.embed(tokens)).tanh())
        logits: Tensor = self.head(hidden)
        return logits


def _conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))


@final
class _Block(nn.Module):
    """A transformer's block, with as many heads as its projections have room for."""

    def __init__(self, width: int = 8, head: int = 2) -> None:
        super().__init__()
        self.head = head
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        near = self.before(x)
        q, k, v = (self._heads(layer(near)) for layer in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        deeper: Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return deeper

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.head).transpose(1, 2)


@final
class _Blocks(nn.Module):
    """A small language model: what repeats is found, gathered and recomputed block by block."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(12, 8)
        self.layers = nn.ModuleList(_Block() for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _vectors(generator: torch.Generator, size: int) -> Batch:
    return torch.randn(size, 8, generator=generator), torch.randint(4, (size,), generator=generator)


def _tokens(generator: torch.Generator, size: int) -> Batch:
    return torch.randint(11, (size,), generator=generator), torch.randint(11, (size,), generator=generator)


def _texts(generator: torch.Generator, size: int) -> Batch:
    text = torch.randint(11, (size, 6), generator=generator)
    return text[:, :-1], text[:, 1:]


def _images(generator: torch.Generator, size: int) -> Batch:
    return torch.randn(size, 1, 8, 8, generator=generator), torch.randint(4, (size,), generator=generator)


def _next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


PLAN = {"embed": "vocabulary", "layers.*.query": "columns", "layers.*.key": "columns", "layers.*.value": "columns"} | {
    "layers.*.out": "rows",
    "layers.*.up": "columns",
    "layers.*.down": "rows",
    "head": "vocabulary",
}

EXAMPLES = {
    example.name: example
    for example in (
        Example("mlp", _mlp, _vectors, functional.cross_entropy),
        Example("tied", _Tied, _tokens, functional.cross_entropy),
        Example("blocks", _Blocks, _texts, _next_token, plan=PLAN),
        Example("conv", _conv, _images, functional.cross_entropy, per_sample=False),
    )
}
