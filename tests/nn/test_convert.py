"""Models that were built without restoke, their layers turned into shared ones: they compute, and keep, what they did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from restoke import said
from restoke.distributed import group_of
from restoke.nn import (
    ParallelEmbedding,
    ParallelLinear,
    convert_parallel_embedding,
    convert_parallel_linear,
    plain,
    shards_of,
)
from tests.nn.joined import refused, run

F64 = torch.float64


class Text(nn.Module):
    """A language model with a tied head, and a block inside a block."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.block = nn.ModuleDict({"up": nn.Linear(6, 10), "act": nn.GELU(), "down": nn.Linear(10, 6)})
        self.head = nn.Linear(6, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.block.down(self.block.act(self.block.up(x)))
        return self.head(x)  # type: ignore[no-any-return]


def text(seed: int = 3, tied: bool = True) -> Text:
    torch.manual_seed(seed)
    return Text(tied).double()


def step(model: nn.Module) -> tuple[Tensor, int]:
    """The logits of this rank's classes, and the first of them; gradients of a loss that weighs each."""
    torch.manual_seed(8)
    ids, weigh = torch.randint(11, (3, 4)), torch.randn(11, dtype=F64)
    out = model(ids)
    start = 0
    if out.shape[-1] != 11:
        shard = shards_of(model)["embed.weight" if "embed.weight" in shards_of(model) else "head.weight"]
        start, weigh = shard.start, shard.of(weigh)
    (out * weigh).sum().backward()
    return plain(out).detach(), start


def same_as_whole(tied: bool, embedding_first: bool) -> list[Any]:
    whole, ours = text(tied=tied), text(tied=tied)
    before = [ours.embed, ours.head, ours.block["up"]]
    if embedding_first:
        convert_parallel_embedding(ours, 0)
        convert_parallel_linear(ours, 1, names="head")
    else:
        convert_parallel_linear(ours, -1, names=["he?d"])
        convert_parallel_embedding(ours, 0, names="embed")
    convert_parallel_linear(ours, 1, names="block.u*")
    convert_parallel_linear(ours, 0, names="block.down")
    assert (ours.head.weight is ours.embed.weight) == tied
    assert [type(each) for each in ours.modules()].count(ParallelLinear) == 3
    assert not any(each is old for each in ours.modules() for old in before)
    (out, start), (expected, _) = step(ours), step(whole)
    worst = float((out - expected[..., start : start + out.shape[-1]]).abs().max())
    shards, others = shards_of(ours), dict(whole.named_parameters())
    for name, param in ours.named_parameters():
        full = others[name].grad
        worst = max(worst, float((param.grad - (shards[name].of(full) if name in shards else full)).abs().max()))
    return [worst <= 1e-12, sorted(shards)]


@pytest.mark.parametrize("embedding_first", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_nested_and_tied_layers_compute_what_they_did(tied: bool, embedding_first: bool) -> None:
    shards = ["block.down.weight", "block.up.bias", "block.up.weight", "embed.weight"] + ["head.weight"] * (not tied)
    assert run(2, same_as_whole, tied, embedding_first) == [[True, shards]] * 2


def test_a_group_of_one_keeps_the_parameters_themselves() -> None:
    model = text()
    before = {name: id(param) for name, param in model.named_parameters()}
    convert_parallel_linear(model, 1, names=["head", "block.up"])
    assert {name: id(param) for name, param in model.named_parameters()} == before
    assert isinstance(model.head, ParallelLinear)
    assert isinstance(model.embed, ParallelEmbedding)
    expected, _ = step(text())
    assert torch.equal(step(model)[0], expected)


def unlike_seeds() -> list[list[float]]:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(dist.get_rank() + 1)
    convert_parallel_linear(model, 0)
    return [each.unique().tolist() for each in model.parameters()]


def test_ranks_of_unlike_seeds_take_the_values_of_rank_0() -> None:
    assert run(2, unlike_seeds) == [[[1.0]] * 4] * 2


def four_ranks() -> list[Any]:
    model = nn.Linear(4, 6)
    with torch.no_grad():
        model.weight.copy_(torch.arange(24.0).view(6, 4) + 100 * dist.get_rank())
    new = convert_parallel_linear(model, 1, group=group_of(2))
    return new.weight[:, 0].tolist()


def test_two_groups_of_two_take_the_same_values() -> None:
    assert run(4, four_ranks) == [[0.0, 4.0, 8.0], [12.0, 16.0, 20.0]] * 2


def kept() -> list[Any]:
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(4, 6, dtype=torch.bfloat16), nn.Linear(6, 2, bias=False))
    first = model[0]
    first.eval().requires_grad_(False)
    first.register_forward_hook(lambda *_: seen.append("after"))
    first.register_forward_pre_hook(lambda *_: seen.append("before"))
    first.qconfig = "mine"
    first.weight.tag = 5
    convert_parallel_linear(model, 1, names="0")
    model[0](torch.ones(1, 4, dtype=torch.bfloat16))
    new = model[0]
    return [
        seen,
        new.training,
        new.weight.requires_grad,
        new.weight.dtype,
        new.qconfig,
        new.weight.tag,
        type(model[1]).__name__,
    ]


def test_hooks_modes_types_and_attributes_are_kept() -> None:
    assert run(2, kept) == [[["before", "after"], False, False, torch.bfloat16, "mine", 5, "Linear"]] * 2


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a


def shared_module() -> list[Any]:
    model = Twice()
    convert_parallel_linear(model, 0)
    return [model.a is model.b, type(model.a).__name__, tuple(model.a.weight.shape)]


def test_a_layer_that_stands_twice_is_one_layer_still() -> None:
    assert run(2, shared_module) == [[True, "ParallelLinear", (4, 2)]] * 2


def attention(train: bool) -> list[Any]:
    torch.manual_seed(2)
    whole = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=F64).train(train)
    torch.manual_seed(2)
    ours = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=F64).train(train)
    convert_parallel_linear(ours, 1, names="linear1")
    convert_parallel_linear(ours, 0, names="linear2")
    x = torch.randn(3, 5, 8, dtype=F64)
    with torch.no_grad():
        return [float((ours(x) - whole(x)).abs().max()) < 1e-12, type(ours.self_attn.out_proj).__name__]


@pytest.mark.parametrize("train", [False, True])
def test_torch_s_transformer_layer_computes_what_it_did_also_without_gradients(train: bool) -> None:
    assert run(2, attention, train) == [[True, "NonDynamicallyQuantizableLinear"]] * 2


def test_subclasses_that_others_read_stay_and_are_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    said._SAID.clear()
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)})
    convert_parallel_linear(model, 1)
    assert type(model["attention"].out_proj) is not ParallelLinear
    assert "attention.out_proj is a NonDynamicallyQuantizableLinear" in capsys.readouterr().err


def test_a_layer_with_a_forward_or_a_weight_made_elsewhere_stays(capsys: pytest.CaptureFixture[str]) -> None:
    said._SAID.clear()
    model = nn.ModuleDict({"normed": nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "own": nn.Linear(2, 2)})
    model["own"].forward = lambda x: x
    convert_parallel_linear(model, 1)
    assert [type(each).__name__ for each in model.values()] == ["ParametrizedLinear", "Linear"]
    assert capsys.readouterr().err.count("stays whole on every rank") == 2


class Borrowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 6)
        self.scale = nn.Module()
        self.scale.table = self.head.weight


def refusals(which: str) -> str:
    model = text()
    bad = {
        "typo": lambda: convert_parallel_linear(model, 1, names="blok.up"),
        "embedding": lambda: convert_parallel_linear(model, 1, names=["head", "embed"]),
        "none": lambda: convert_parallel_embedding(nn.Sequential(nn.ReLU()), 1, names="*"),
        "dim": lambda: convert_parallel_linear(model, 2),
        "borrowed": lambda: convert_parallel_linear(Borrowed(), 1),
        "another cut": lambda: convert_parallel_embedding(convert_parallel_linear(model, 1, names="head"), 1, names="embed"),
    }
    return refused(bad[which])


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("typo", "names='blok.up': no Linear that can be shared has such a name. Instead: did you mean 'block.up'"),
        ("embedding", "names='embed'"),
        ("none", "Instead: a model that has one"),
        ("dim", "dim=2"),
        ("borrowed", "names='head': it shares scale.table with a Module, which needs it whole"),
        ("another cut", "dim=1: embed is shared already, with dim=0"),
    ],
)
def test_what_cannot_be_turned_is_refused_on_every_rank(which: str, words: str) -> None:
    assert all(words in message for message in run(2, refusals, which))


def test_layers_offer_it_as_torchshard_s_do() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2))
    assert ParallelLinear.convert_parallel_linear(model) is model
    assert ParallelEmbedding.convert_parallel_embedding(model, dim=0) is model
    assert [type(each) for each in model] == [ParallelLinear, ParallelEmbedding]
    assert type(convert_parallel_linear(nn.Linear(2, 2), 1)) is ParallelLinear


def on_meta() -> list[Any]:
    with torch.device("meta"):
        model = Text()
    convert_parallel_linear(model, 1, names=["head", "block.up"])
    shapes = {name: tuple(param.shape) for name, param in model.named_parameters() if param.is_meta}
    return [
        shapes["embed.weight"],
        shapes["block.up.weight"],
        model.head.weight is model.embed.weight,
        sorted(shards_of(model)),
    ]


def test_models_on_the_meta_device_are_turned_before_they_have_memory() -> None:
    for rank, answer in enumerate(run(2, on_meta)):
        shards = ["block.up.bias", "block.up.weight", "embed.weight"]
        assert answer == [(6 - rank, 6), (5, 6), True, shards]
