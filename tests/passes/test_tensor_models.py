"""Tensor parallelism of a language model as they are built today, against the same training in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from restoke import AMPConfig, OptimizerSpec, Session, TensorConfig
from restoke.testing.training import trained
from tests import ranks

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
FAR = 1e-6  # float32, SGD
PLAIN = {
    "embed": "vocabulary",
    "head": "vocabulary",
    "layers.*.[qkv]": "columns",
    "layers.*.[qk]_norm": "heads",
    "layers.*.o": "rows",
    "layers.*.up": "columns",
    "layers.*.gate": "columns",
    "layers.*.down": "rows",
}
SEQUENCE = {**PLAIN, "position": "sequence", "layers.*.norm?": "sequence", "layers.*.drop": "sequence", "norm": "sequence"}


class Block(nn.Module):
    """Fewer keys than queries, each head normed; a gated MLP; dropout."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.RMSNorm(8)
        self.q, self.k, self.v, self.o = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 8)
        self.q_norm, self.k_norm = nn.RMSNorm(2), nn.RMSNorm(2)
        self.up, self.gate, self.down = nn.Linear(8, 12), nn.Linear(8, 12, bias=False), nn.Linear(12, 8)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Any:
        near = self.norm1(x)
        q, k, v = (layer(near).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        seen = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True, enable_gqa=True)
        x = x + self.drop(self.o(seen.transpose(1, 2).flatten(2)))
        near = self.norm2(x)
        return x + self.drop(self.down(self.up(near) * functional.silu(self.gate(near))))


class Model(nn.Module):
    """The head's weight is the embedding's too, and the second block's norms are frozen."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.position = nn.Embedding(12, 8), nn.Embedding(6, 8)
        self.layers = nn.ModuleList(Block(drop) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight
        self.layers[1].norm1.requires_grad_(False)

    def forward(self, text: Tensor) -> Any:
        x = self.embed(text) + self.position(torch.arange(text.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(12, (8, 7), generator=generator) for _ in range(3)]


def loss_of(session: Session, text: Tensor) -> Tensor:
    output = session.forward(text[:, :-1])
    with session.forward_context():
        return functional.cross_entropy(output.flatten(0, 1), text[:, 1:].flatten())


def started(plan: dict[str, str] | None, strategy: str, model: nn.Module, weights: str | None = None, **axes: Any) -> Session:
    if plan is not None:
        axes |= {"tensor": 2, "settings": [*axes.pop("settings", []), TensorConfig(plan=plan)]}
    session = Session(strategy=strategy, device="cpu", **axes)
    session.prepare(model, SGD, weights=weights)
    return session


def train(session: Session) -> dict[str, Any]:
    rank, size = session.world.data_rank, session.world.data_size
    for text in texts():
        for piece in text[rank::size].chunk(session.spec.accumulate):
            session.backward(loss_of(session, piece))
            session.step()
    return trained(session)


def by(plan: dict[str, str] | None, strategy: str, axes: dict[str, Any]) -> dict[str, Any]:
    return train(started(plan, strategy, Model(), **axes))


def near(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert float(np.abs(got[name] - value).max()) <= FAR, name


@pytest.mark.parametrize("plan", [PLAIN, SEQUENCE], ids=["plain", "sequence"])
@pytest.mark.parametrize(("strategy", "processes"), [("fsdp", 2), ("zero2", 4), ("hsdp", 4)])
def test_a_model_trains_in_shares_as_it_does_whole(plan: dict[str, str], strategy: str, processes: int) -> None:
    alone = ranks.run(1, by, None, "single", {"clip": 0.3})[0]
    for rank in ranks.run(processes, by, plan, strategy, {"clip": 0.3, "accumulate": 2, "remat": "blocks"}):
        near(rank, alone)


def dropped(plan: dict[str, str] | None, strategy: str) -> list[float]:
    session = started(plan, strategy, Model(drop=0.3), seed=5)
    losses = []
    for text in texts():
        loss = loss_of(session, text)
        losses.append(loss.item())
        session.backward(loss)
        session.step()
    return losses


def test_dropout_draws_the_masks_that_one_process_draws() -> None:
    alone = ranks.run(1, dropped, None, "single")[0]
    for plan in (PLAIN, SEQUENCE):
        for losses in ranks.run(2, dropped, plan, "fsdp"):
            assert losses == pytest.approx(alone, abs=FAR)


def overflowed() -> tuple[bool, float, dict[str, Any], dict[str, Any]]:
    """An infinity in one rank's share of a layer; the first parameter, by whose cut torch asks the ranks, is whole on each."""
    plan = {name: style for name, style in PLAIN.items() if name not in ("embed", "head")}
    session = started(plan, "fsdp", Model(), precision="fp16", settings=[AMPConfig(init_scale=4.0)])
    before = trained(session)
    session.backward(loss_of(session, texts()[0]))
    grad: Any = session.parts.module.get_parameter("layers.1.up.weight").grad
    if session.world.rank == session.world.size - 1:
        grad.to_local()[0, 0] = float("inf")
    step = session.step()
    assert step is not None
    assert session.scaler is not None
    return step.skipped, session.scaler.torch.get_scale(), before, trained(session)


@pytest.mark.parametrize("processes", [2, 4])
def test_an_overflow_in_one_share_skips_the_step_on_all_ranks(processes: int) -> None:
    for skipped, scale, before, after in ranks.run(processes, overflowed):
        assert skipped
        assert scale == 2.0
        near(after, before)


def filled(path: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = Model()
    return train(started(SEQUENCE, "fsdp", model, path))


def test_a_model_without_memory_is_filled_share_by_share(tmp_path: Path) -> None:
    path = str(tmp_path / "model.safetensors")
    save_file({name: value for name, value in Model().state_dict().items() if name != "head.weight"}, path)
    alone = ranks.run(1, by, None, "single", {})[0]
    for rank in ranks.run(4, filled, path):
        near(rank, alone)


def odd_length() -> str:
    session = started(SEQUENCE, "fsdp", Model())
    with pytest.raises(Exception, match=r"a sequence of 5 cannot be shared out over 2 ranks\. Instead: ") as refused:
        session.forward(texts()[0][:, :5])
    return str(refused.value)


def test_a_sequence_that_the_ranks_cannot_share_is_refused_on_each() -> None:
    assert len(set(ranks.run(2, odd_length))) == 1
