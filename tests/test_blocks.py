"""The blocks of models as they are written: lists, stages, two stacks, experts within blocks, nested names, and none at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from restoke.blocks import cut_by_size, find_blocks
from restoke.errors import SpecError


def mlp(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class Layer(nn.Module):
    def __init__(self, width: int = 8, inner: Callable[[], nn.Module] = mlp) -> None:
        super().__init__()
        self.attention, self.inner, self.norm = nn.MultiheadAttention(width, 2), inner(), nn.LayerNorm(width)


class Cross(Layer):
    """A decoder's, another class."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.MultiheadAttention(8, 2)


class Stacked(nn.Module):
    """As `model.layers` in language models: an inner model, and a head."""

    def __init__(self, make: Callable[[], nn.Module] = Layer, depth: int = 3) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(1000, 8)
        self.model.layers = nn.ModuleList(make() for _ in range(depth))
        self.lm_head = nn.Linear(8, 1000)


class Experts(nn.Module):
    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, count), nn.ModuleList(mlp() for _ in range(count))


class Mixture(nn.Module):
    """The first layer is dense, the others are mixtures of experts that hold nearly all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), *(Layer(inner=Experts) for _ in range(3))])


class Basic(nn.Module):
    """A ResNet's block."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3), nn.BatchNorm2d(out)
        if into != out:
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, into = nn.Conv2d(3, 8, 7), 8
        for i, out in enumerate((8, 16, 32, 64), 1):
            setattr(self, f"layer{i}", nn.Sequential(Basic(into, out), Basic(out, out)))
            into = out
        self.fc = nn.Linear(64, 10)


class Stage(nn.Module):
    """As of Swin or ConvNeXt: blocks, and a step down to the next."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer(width, lambda: mlp(width)) for _ in range(depth))
        self.downsample = nn.Linear(width, 2 * width)


class Staged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Stage(8, 2), Stage(16, 1), Stage(32, 3)])


class Towers(nn.Module):
    """Two stacks of different classes, and two small heads in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.block = nn.ModuleList(Layer() for _ in range(2))
        self.decoder.block = nn.ModuleList(Cross() for _ in range(2))
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(8, 1)) for _ in range(2))


class Inverted(nn.Module):
    """As of MobileNet: many blocks, each of other sizes, with a run within."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Sequential(nn.Conv2d(into, out, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(out, out, 3), nn.ReLU())
        )


class Down(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.double = nn.Sequential(nn.Conv2d(into, out, 3), nn.ReLU(), nn.Conv2d(out, out, 3))


class UNet(nn.Module):
    """Levels in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inc = nn.Conv2d(1, 4, 3)
        self.down1, self.down2, self.down3 = Down(4, 8), Down(8, 16), Down(16, 32)
        self.outc = nn.Conv2d(32, 1, 1)


class Once(nn.Module):
    """Parts of which no two are of one class."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Layer(), Cross(), nn.LSTM(8, 8)


def shared() -> nn.Module:
    layer = Layer()
    return nn.Sequential(nn.ModuleList([layer, layer, layer]), nn.Linear(8, 8))


def numbered(prefix: str, *numbers: int) -> list[str]:
    return [f"{prefix}.{i}" for i in numbers]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Stacked, numbered("model.layers", 0, 1, 2)),
        (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False),
            numbered("layers", 0, 1, 2),
        ),
        (
            lambda: nn.Transformer(8, 2, 2, 2, 16, batch_first=True),
            numbered("encoder.layers", 0, 1) + numbered("decoder.layers", 0, 1),
        ),
        (Towers, numbered("encoder.block", 0, 1) + numbered("decoder.block", 0, 1)),
        (Mixture, numbered("layers", 0, 1, 2, 3)),
        (ResNet, [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]),
        (Staged, [*numbered("stages.0.blocks", 0, 1), "stages.1", *numbered("stages.2.blocks", 0, 1, 2)]),
        (lambda: nn.Sequential(*(Inverted(4 + i, 5 + i) for i in range(9))), [str(i) for i in range(9)]),
        (lambda: nn.Sequential(mlp(), mlp(), nn.Linear(8, 2)), ["0", "1"]),
        (lambda: nn.ModuleDict({"a": Layer(), "b": Layer()}), ["a", "b"]),
        (UNet, ["down1", "down2", "down3"]),
        (Once, []),
        (mlp, []),
        (shared, []),
        (lambda: nn.Linear(8, 8), []),
        (lambda: nn.Sequential(nn.Linear(800, 80), nn.Linear(80, 80), nn.Linear(80, 800), mlp(4), mlp(4)), []),
    ],
)
def test_blocks_are_found(model: Callable[[], Any], names: list[str]) -> None:
    made = model()
    found = find_blocks(made)
    assert [name for name, _ in found] == names
    assert all(made.get_submodule(name) is module for name, module in found)


def test_patterns_name_the_outermost_that_match() -> None:
    model = Mixture()
    assert [name for name, _ in find_blocks(model, ("layers.[12]", "layers.1.*", "layers.2.inner"))] == ["layers.1", "layers.2"]
    assert [name for name, _ in find_blocks(model, ("*.experts.0",))] == [f"layers.{i}.inner.experts.0" for i in (1, 2, 3)]


def test_lists_are_no_blocks_since_they_are_not_called() -> None:
    assert [name for name, _ in find_blocks(Stacked(), ("model.layers*",))] == numbered("model.layers", 0, 1, 2)


def test_a_pattern_that_names_nothing_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match=r"did you mean 'model.layers.0'") as caught:
        find_blocks(Stacked(), ("model.layer.0",))
    assert caught.value.problems[0].axis == "blocks"


def test_a_model_is_cut_by_size() -> None:
    assert [name for name, _ in cut_by_size(nn.Sequential(mlp(), nn.Linear(8, 8), mlp(16)), 250)] == ["0", "2.0", "2.2"]
