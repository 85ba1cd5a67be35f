"""Models small enough to compare bit by bit, and their data: what the contract suite trains."""

from __future__ import annotations

from collections.abc import Callable
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


def _vectors(generator: torch.Generator, size: int) -> Batch:
    return torch.randn(size, 8, generator=generator), torch.randint(4, (size,), generator=generator)


def _tokens(generator: torch.Generator, size: int) -> Batch:
    return torch.randint(11, (size,), generator=generator), torch.randint(11, (size,), generator=generator)


def _images(generator: torch.Generator, size: int) -> Batch:
    return torch.randn(size, 1, 8, 8, generator=generator), torch.randint(4, (size,), generator=generator)


EXAMPLES = {
    example.name: example
    for example in (
        Example("mlp", _mlp, _vectors, functional.cross_entropy),
        Example("tied", _Tied, _tokens, functional.cross_entropy),
        Example("conv", _conv, _images, functional.cross_entropy, per_sample=False),
    )
}
