"""Models that torch's engines do not take as they are: trained as in one process, or refused where they are prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from restoke import FSDPConfig, OptimizerSpec, Session
from restoke.errors import SpecError
from tests import ranks
from tests.strategies.test_models import ROWS

BATCHES = torch.randn(3, 2, 4, 3, 6, 6, generator=torch.Generator().manual_seed(1))  # step, rank, batch, channels, image
every_row = pytest.mark.parametrize("strategy", ROWS)


class Odd(nn.Module):
    """Parameters in another order of memory, and without elements; a buffer of a dtype that no backend sends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.turned = nn.Parameter(torch.randn(5, 4).t())
        self.register_buffer("turned_too", torch.arange(6.0).reshape(2, 3).t())

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3)) @ self.turned + self.empty.sum()


class Attention(nn.Module):
    """An attention that takes the weights of its part without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1, 2)
        return self.attention(flat, flat, flat)[0]


class Short(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 2)
        self.register_buffer("short", torch.arange(3, dtype=torch.int16))

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) * self.short[1]


MODELS: dict[str, Callable[[], nn.Module]] = {"odd": Odd, "attention": Attention, "short": Short}


def made(name: str) -> nn.Module:
    torch.manual_seed(4)
    return MODELS[name]()


def in_one_process(name: str) -> dict[str, Tensor]:
    model = made(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in BATCHES:
        optimizer.zero_grad()
        sum(model(x).square().mean() / 2 for x in step).backward()  # type: ignore[union-attr]
        optimizer.step()
    return {key: value.detach() for key, value in model.state_dict().items()}


def on_ranks(name: str, strategy: str) -> dict[str, Tensor]:
    """With evaluations under torch.inference_mode before each step."""
    session = Session(strategy=strategy, device="cpu", settings=[FSDPConfig(min_unit=1)])
    session.prepare(made(name), OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}))
    for step in BATCHES:
        with torch.inference_mode():
            seen = session.forward(step[0])
        assert not seen.requires_grad
        session.backward(session.forward(step[session.world.data_rank]).square().mean())
        session.step()
    return session.full_state_dict()


@pytest.mark.parametrize(
    ("name", "strategy"),
    [*((name, strategy) for name in ("odd", "attention") for strategy in ROWS), ("short", "zero2"), ("short", "fsdp")],
)
def test_it_trains_as_in_one_process(name: str, strategy: str) -> None:
    right = in_one_process(name)
    for found in ranks.run(2, on_ranks, name, strategy):
        assert found.keys() == right.keys()
        for key, value in right.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.one, self.other = nn.Linear(2, 2).half(), nn.Linear(2, 2), nn.Linear(2, 2).double()
        self.frozen.requires_grad_(False)


REFUSED: dict[str, tuple[str, Callable[[], nn.Module], str]] = {
    "two dtypes": ("fsdp", Mixed, "model='other.weight of float64': one.weight is float32, and torch's FSDP2 gathers"),
    "sparse gradients": ("fsdp", lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "model='0.sparse': its gradients are"),
    "sparse gradients in rows": ("zero1", lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "which zero1 cannot cut"),
    "no shape": ("zero2", lambda: nn.Sequential(nn.LazyLinear(2)), "model='0.weight': its shape is not known"),
    "no shape in copies": ("ddp", lambda: nn.Sequential(nn.LazyLinear(2)), "model='Sequential': torch's DDP refuses it"),
    "a dtype that is not sent": ("ddp", Short, "model='Short': torch's DDP refuses it (Invalid scalar type)"),
}


def refused(case: str) -> str:
    strategy, model, _ = REFUSED[case]
    with pytest.raises(SpecError) as error:
        Session(strategy=strategy, device="cpu").prepare(model(), OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    return str(error.value)


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_would_answer_in_the_middle_of_a_step_is_refused(case: str) -> None:
    for said in ranks.run(2, refused, case):
        assert REFUSED[case][2] in said


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.temperature = nn.Linear(6, 2), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) * self.temperature


def micro_batch(session: Session, i: int, world: int) -> None:
    own = BATCHES[i, session.world.data_rank] if world == 2 else BATCHES[i].flatten(0, 1)
    session.backward(session.forward(own).square().mean())
    session.step()


def half_a_window(strategy: str, folder: str, saves: bool) -> dict[str, Tensor]:
    torch.manual_seed(4)
    session = Session(strategy=strategy, device="cpu", accumulate=2)
    session.prepare(Tempered(), OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    if saves:
        micro_batch(session, 0, session.world.size)
        session.save(folder)
    else:
        session.load(folder)
    micro_batch(session, 1, session.world.size)
    return session.full_state_dict()


@every_row
def test_half_a_window_of_a_parameter_without_a_dimension_is_saved(strategy: str, tmp_path: Path) -> None:
    right = ranks.run(2, half_a_window, strategy, str(tmp_path), True)[0]
    for found in (half_a_window("single", str(tmp_path), False), ranks.run(2, half_a_window, "fsdp", str(tmp_path), False)[1]):
        for key, value in right.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)


def added_later(strategy: str) -> dict[str, Any]:
    session = Session(strategy=strategy, device="cpu")
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))

    def first(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in parameters if p.shape[0] != 2], **options)

    session.prepare(model, OptimizerSpec(first, {"lr": 0.1}))
    session.parts.optimizer.add_param_group({"params": list(session.parts.module.parameters())[2:]})
    session.backward(session.forward(BATCHES[0, 0]).square().mean())
    session.step()
    return session.full_state_dict()


@every_row
def test_parameters_that_a_script_adds_to_the_optimizer_step_at_once(strategy: str) -> None:
    right = ranks.run(2, added_later, "ddp")[0]
    for found in ranks.run(2, added_later, strategy):
        for key, value in right.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)
