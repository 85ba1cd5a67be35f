"""Recomputed blocks train to the last bit as kept ones do, keep less, and count what batch norm counts once."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from restoke import OptimizerSpec, Session
from restoke.errors import SpecError

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
HOWS = ("blocks", "selective")


@dataclass
class Hidden:
    """What a block passes on, besides its input."""

    value: Tensor
    layer: int


class Block(nn.Module):
    """Attention, dropout, batch norm and a convolution; takes a keyword."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.conv, self.norm, self.drop = nn.Conv1d(width, width, 1), nn.BatchNorm1d(width), nn.Dropout(0.2)

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Tensor:
        """x: (batch, length, width)."""
        mixed = functional.scaled_dot_product_attention(*self.qkv(x).chunk(3, dim=-1))
        x = x + self.drop(self.out(mixed).tanh())
        x = x + self.norm(self.conv(x.mT)).relu().mT
        return x if scale is None else x * scale


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, scale=(i + 1) / (1 + x.detach().abs().mean()))
        head: Tensor = self.head(x)
        return head


def session_of(model: nn.Module, **axes: Any) -> Session:
    session = Session(**axes)
    session.prepare(model, SGD)
    return session


def trained(model: nn.Module, steps: int = 3, **axes: Any) -> dict[str, Tensor]:
    session = session_of(model, **axes)
    torch.manual_seed(1)
    for _ in range(steps):
        with session.forward_context():
            loss = session.forward(torch.randn(4, 5, 8)).square().mean()
        session.backward(loss)
        session.step()
    return session.parts.module.state_dict()


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-true"])
def test_recomputing_changes_no_bit(how: str, precision: str) -> None:
    """Dropout, autocast and the statistics of batch norm among it."""
    same(trained(Stack(), remat=how, precision=precision), trained(Stack(), precision=precision))


@pytest.mark.parametrize("how", HOWS)
def test_batch_norm_counts_once_and_its_buffers_stay_the_same_tensors(how: str) -> None:
    session = session_of(Stack(), remat=how)
    before = dict(session.parts.module.named_buffers())
    session.backward(session.forward(torch.randn(4, 5, 8)).sum())
    assert all(buffer is before[name] for name, buffer in session.parts.module.named_buffers())
    assert {int(b) for name, b in before.items() if "tracked" in name} == {1}


class Made(TorchDispatchMode):  # type: ignore[misc]
    """Remembers, without holding them, the storages that operations made, and their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self.seen[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def alive(self) -> int:
        return sum(size for ref, size in self.seen.values() if not ref.expired())


def held_for_the_backward(how: str) -> int:
    """Bytes that the forward of four blocks made and that wait for the backward."""
    session = session_of(Stack(depth=4), remat=how)
    with Made() as made:
        loss = session.forward(torch.randn(64, 5, 8)).sum()
    assert loss.requires_grad
    return made.alive()


def test_activations_are_dropped() -> None:
    none, selective, blocks = map(held_for_the_backward, ("none", "selective", "blocks"))
    an_input = 64 * 5 * 8 * 4
    assert blocks < 5.5 * an_input, "an input for each block, and one for the head"
    assert blocks < selective < 0.75 * none


class Products(TorchDispatchMode):  # type: ignore[misc]
    """Counts the products and convolutions that run forwards."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__ in ("addmm.default", "convolution.default")
        return func(*args, **(kwargs or {}))


def products(how: str) -> int:
    """Those of the backward, whose own gradients of three blocks are other operations."""
    session = session_of(Stack(), remat=how)
    loss = session.forward(torch.randn(4, 5, 8)).sum()
    with Products() as products:
        session.backward(loss)
    return products.count


def test_selective_computes_no_product_again() -> None:
    assert products("selective") == products("none") == 0
    assert products("blocks") == 3 * 3, "two layers and a convolution in each of three blocks"


def test_names_types_and_signatures_stay() -> None:
    plain, session = Stack(), session_of(Stack(), remat="blocks")
    module = session.parts.module
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [type(m) for m in module.modules()] == [type(m) for m in plain.modules()]
    assert inspect.signature(module.layers[0].forward) == inspect.signature(plain.layers[0].forward)


def test_a_deep_copy_runs_its_own_blocks() -> None:
    session = session_of(Stack(), remat="blocks")
    twin = copy.deepcopy(session.parts.module).eval()
    x = torch.randn(4, 5, 8)
    before = twin(x)
    with torch.no_grad():
        for p in session.parts.module.parameters():
            p.zero_()
    assert torch.equal(twin(x), before)
    twin(x).sum().backward()
    assert all(p.grad is None for p in session.parts.module.parameters())
    assert all(p.grad is not None for p in twin.parameters())


class Dicts(nn.Module):
    """Blocks that speak dictionaries and dataclasses, with names that torch's function keeps for itself."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(8, 8), nn.Dropout(0.5)

        def forward(self, hidden: Hidden, debug: dict[str, Tensor] | None = None) -> tuple[Hidden, dict[str, Tensor]]:
            bias = debug["bias"] if debug else 0.0
            value = self.act(self.linear(hidden.value)) + bias
            return Hidden(value, hidden.layer + 1), {"bias": value.mean()}

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(self.Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden, more = Hidden(x, 0), None
        for layer in self.layers:
            hidden, more = layer(hidden, debug=more)
        assert hidden.layer == 2
        return hidden.value


@pytest.mark.parametrize("how", HOWS)
def test_dictionaries_and_dataclasses_pass_through(how: str) -> None:
    same(trained(Dicts(), remat=how), trained(Dicts()))


def test_a_keyword_that_is_changed_before_the_backward_is_noticed() -> None:
    class Model(Stack):
        def forward(self, x: Tensor) -> Tensor:
            scale = x.detach().abs().mean()
            x = self.layers[0](x, scale=scale)
            scale.add_(1)
            return self.layers[1](x, scale=scale)  # type: ignore[no-any-return]

    session = session_of(Model(), remat="blocks")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        session.backward(session.forward(torch.randn(4, 5, 8)).sum())


def test_without_gradients_blocks_run_as_they_are() -> None:
    session = session_of(Stack(), remat="blocks")
    x = torch.randn(4, 5, 8)
    with torch.no_grad():
        session.parts.module.eval()
        assert torch.equal(session.forward(x), Stack().eval()(x))


def test_a_batch_norm_that_is_replaced_after_the_pass_counts_once() -> None:
    """As strategies do that synchronise it."""
    session = session_of(Stack(), remat="blocks")
    for layer in session.parts.module.layers:
        layer.norm = nn.BatchNorm1d(8)
    session.backward(session.forward(torch.randn(4, 5, 8)).sum())
    assert {int(layer.norm.num_batches_tracked) for layer in session.parts.module.layers} == {1}


class Counting(nn.Module):
    """Reads a buffer, then changes it: run again, it would compute something else."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.calls
        self.calls.add_(1)
        return y


def test_a_block_that_changes_other_buffers_is_refused() -> None:
    session = session_of(nn.Sequential(Counting(), Counting()), remat="blocks")
    with pytest.raises(SpecError, match="0 changes its buffer calls in its forward") as caught:
        session.forward(torch.randn(2, 8))
    assert caught.value.problems[0].axis == "remat"


@pytest.mark.parametrize("how", HOWS)
def test_a_model_without_blocks_is_refused(how: str) -> None:
    with pytest.raises(SpecError, match="no kind of layer repeats") as caught:
        session_of(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), remat=how)
    problem = caught.value.problems[0]
    assert (problem.axis, problem.got) == ("remat", how)
    assert "blocks=" in problem.instead


def test_patterns_choose_what_is_recomputed() -> None:
    session = session_of(Stack(), remat="blocks", blocks=("layers.[02]",))
    replaced = ["forward" in vars(layer) for layer in session.parts.module.layers]
    assert replaced == [True, False, True]


def test_blocks_found_are_those_of_the_model() -> None:
    session = session_of(nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))), remat="blocks")
    assert "forward" in vars(session.parts.module[0])
