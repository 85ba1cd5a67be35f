"""Models as people write them, each with something that a sharded strategy can trip over; every sample trains by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

WIDTH = 6


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 3 * width + 1)  # no multiple of any number of ranks
        self.down = nn.Linear(3 * width + 1, width)

    def forward(self, x: Tensor) -> Tensor:
        deeper: Tensor = x + self.down(self.up(x).tanh())
        return deeper


class Deep(nn.Module):
    """Blocks in a list, between a stem and a head."""

    def __init__(self, block: Callable[[], nn.Module] = Block, count: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList(block() for _ in range(count))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter (LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.up(self.down(x))
        return adapted


class FrozenBlock(nn.Module):
    """All of a block frozen, and yet gradients pass through it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        through: Tensor = self.inner(x)
        return through


@dataclass
class Output:
    """As libraries of models return: no tensor, no tuple, and unknown to torch's trees."""

    logits: Tensor
    hidden: list[Tensor]


class Keywords(nn.Module):
    """Keywords in, and a dataclass out, also between the blocks."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, *, state: dict[str, Tensor], scale: float) -> Output:
            x = self.block(state["x"]) * scale
            return Output(x, [x])

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList(Keywords.Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, *, x: Tensor) -> Output:
        state = {"x": self.stem(x)}
        for layer in self.layers:
            out = layer(state=state, scale=0.5)
            state = {"x": out.logits}
        return Output(self.head(state["x"]), out.hidden)


class TiedBlocks(Deep):
    """Two blocks share a weight with each other, and with the head of neither."""

    def __init__(self) -> None:
        super().__init__()
        first, last = self.layers[0], self.layers[2]
        assert isinstance(first, Block)
        assert isinstance(last, Block)
        last.up.weight = first.up.weight


class Sometimes(Deep):
    """A layer that only some of the inputs pass through, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 3)
        self.extra = nn.Linear(2, 2)

    def forward(self, x: Tensor, extra: bool = False) -> Any:
        out = super().forward(x)
        return self.extra(out) if extra else out


class Scalar(Deep):
    """A temperature, a parameter without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * self.temperature


class Unlike(nn.Module):
    """No two layers alike: nothing repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.GELU())
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.body(x)))


@frozen
class Model:
    """How it is built and called, and its parameter groups."""

    build: Callable[[], nn.Module]
    call: Callable[[Any, Tensor], Tensor] = lambda forward, x: forward(x)
    groups: tuple[dict[str, Any], ...] = ()

    def made(self) -> nn.Module:
        torch.manual_seed(3)
        return self.build()


MODELS = {
    "blocks": Model(Deep),
    "adapters": Model(lambda: Deep(Adapted)),
    "frozen blocks": Model(lambda: Deep(FrozenBlock)),
    "keywords": Model(Keywords, lambda forward, x: forward(x=x).logits),
    "tied blocks": Model(TiedBlocks),
    "scalar": Model(Scalar),
    "unlike layers": Model(Unlike),
    "groups": Model(Deep, groups=({"params": "*.bias", "lr": 0.02}, {"params": ("layers.*", "stem.*"), "weight_decay": 0.1})),
}
