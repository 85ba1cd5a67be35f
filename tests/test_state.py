"""State by the user's own names: tied weights once, other strategies' states taken, and what does not fit refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from restoke import OptimizerSpec, Session
from restoke.errors import CheckpointError
from restoke.testing.examples import EXAMPLES

ADAM = OptimizerSpec(torch.optim.AdamW, {"lr": 0.1})


def trained(model: nn.Module, optimizer: OptimizerSpec = ADAM, **axes: Any) -> Session:
    session = Session(**axes)
    session.prepare(model, optimizer)
    return session


def mlp(width: int = 3, **layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))


def step(session: Session) -> None:
    session.backward(session.forward(torch.ones(2, 2)).square().sum())
    session.step()


def test_tied_weights_are_saved_once_and_keep_both_names() -> None:
    session = trained(EXAMPLES["tied"].build())
    captured = session.parts.state.capture()
    assert "model/embed.weight" in captured.chunks
    assert "model/head.weight" not in captured.chunks
    assert captured.values["model"]["aliases"] == {"head.weight": "embed.weight"}


def test_tied_weights_load_from_a_file_that_knows_their_other_name_alone(tmp_path: Path) -> None:
    saved = EXAMPLES["tied"].build()
    torch.manual_seed(1)
    nn.init.normal_(saved.head.weight)  # type: ignore[arg-type, union-attr]
    tensors = {name: value for name, value in saved.state_dict().items() if name != "embed.weight"}
    save_file(tensors, tmp_path / "model.safetensors")
    session = Session(strategy="single", device="cpu")
    model = EXAMPLES["tied"].build()
    session.prepare(model, ADAM, weights=tmp_path / "model.safetensors")
    assert model.embed.weight is model.head.weight
    assert torch.equal(model.embed.weight, saved.head.weight)  # type: ignore[arg-type]


def test_tied_weights_load_into_a_model_that_has_untied_them(tmp_path: Path) -> None:
    one = trained(EXAMPLES["tied"].build(), OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    one.save(tmp_path)
    untied = EXAMPLES["tied"].build()
    untied.head.weight = nn.Parameter(torch.zeros(11, 8))
    two = Session()
    two.prepare(untied, OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    with pytest.raises(CheckpointError, match="parameter groups"):
        two.load(tmp_path)
    two.load(tmp_path, strict=False)
    assert torch.equal(untied.head.weight, one.parts.module.head.weight)


def test_restoring_copies(tmp_path: Path) -> None:
    """torch's optimizers keep, and later step, the tensors that they load."""
    one = trained(mlp())
    step(one)
    one.save(tmp_path)
    two, three = trained(mlp()), trained(mlp())
    two.load(tmp_path)
    step(two)
    three.load(tmp_path)
    step(three)
    for a, b in zip(two.parts.module.parameters(), three.parts.module.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("model", "optimizer", "says"),
    [
        (lambda: mlp(width=4), ADAM, "shape"),
        (lambda: nn.Sequential(nn.Linear(2, 3)), ADAM, "not in the model"),
        (lambda: nn.Sequential(*mlp(), nn.Linear(1, 1)), ADAM, "2 tensors of the model are not in it"),
        (mlp, OptimizerSpec(torch.optim.SGD, {"lr": 0.1}), "AdamW"),
        (mlp, OptimizerSpec(torch.optim.AdamW, {"lr": 0.1}, ({"params": "*.bias"},)), "parameter groups"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(
    tmp_path: Path, model: Any, optimizer: OptimizerSpec, says: str
) -> None:
    one = trained(mlp())
    step(one)
    one.save(tmp_path)
    two = trained(model(), optimizer)
    before = {name: tensor.clone() for name, tensor in two.parts.module.state_dict().items()}
    with pytest.raises(CheckpointError, match=says):
        two.load(tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in two.parts.module.state_dict().items())
    assert (two.steps, two.parts.optimizer.state) == (0, {})


@pytest.mark.parametrize("other", ["none", "another", "registered"])
def test_what_the_session_lacks_is_refused_before_anything_is_changed(tmp_path: Path, other: str) -> None:
    one, two = Session(), Session()
    one.prepare(mlp(), ADAM, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    step(one)
    one.save(tmp_path)
    schedulers = {"none": None, "another": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}
    two.prepare(model := mlp(), ADAM, schedulers.get(other, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1)))
    if other == "registered":
        two.register("another", nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=f"{'registered' if other == 'registered' else 'schedulers'}=.* strict=False"):
        two.load(tmp_path)
    assert torch.equal(model[0].weight, mlp()[0].weight)
    two.load(tmp_path, strict=False)
    assert torch.equal(model[0].weight, one.parts.module[0].weight)


def test_without_strictness_what_fits_is_loaded_and_the_rest_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Session()
    one.prepare(mlp(), ADAM, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    step(one)
    one.save(tmp_path)
    two, model = Session(), nn.Sequential(*mlp()[:2], nn.Linear(3, 1), nn.Linear(1, 1))  # type: ignore[index]
    groups = ({"params": "*.bias", "weight_decay": 0.5, "lr": 7.0}, {"params": "3.*", "lr": 5.0})
    two.prepare(
        model, OptimizerSpec(torch.optim.AdamW, {}, groups), lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1)
    )
    two.load(tmp_path, strict=False)
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        mine, theirs = model.get_parameter(name), one.parts.module.get_parameter(name)
        assert torch.equal(mine, theirs)
        assert torch.equal(two.parts.optimizer.state[mine]["exp_avg"], one.parts.optimizer.state[theirs]["exp_avg"])
    assert model[3].weight not in two.parts.optimizer.state
    assert [group["lr"] for group in two.parts.optimizer.param_groups] == [
        one.parts.optimizer.param_groups[0]["lr"],
        5.0,
        one.parts.optimizer.param_groups[0]["lr"],
    ]
    assert [line.removeprefix("restoke: ") for line in capsys.readouterr().err.splitlines()] == [
        "3.bias: the checkpoint has none",
        "3.weight: the checkpoint has none",
        "optimizer AdamW: its parameter groups are others, whose options follow most of their parameters; "
        "2 parameters begin anew, 0 are left out",
        "schedulers: the checkpoint has them for another number of parameter groups: none was restored",
    ]
    step(two)


def test_without_strictness_another_optimizer_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = trained(mlp())
    step(one)
    one.save(tmp_path)
    two = trained(mlp(), OptimizerSpec(torch.optim.SGD, {"lr": 0.3, "momentum": 0.9}))
    two.load(tmp_path, strict=False)
    assert torch.equal(two.parts.module[0].weight, one.parts.module[0].weight)
    assert (two.parts.optimizer.param_groups[0]["lr"], two.parts.optimizer.state) == (0.3, {})
    assert capsys.readouterr().err.endswith("AdamW: this run's optimizer is SGD, whose state is another, and begins anew\n")


def test_a_float32_state_loads_into_a_bfloat16_model(tmp_path: Path) -> None:
    one = trained(mlp())
    step(one)
    one.save(tmp_path)
    two = trained(mlp(), precision="bf16-true")
    two.load(tmp_path)
    for a, b in zip(one.parts.module.parameters(), two.parts.module.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)


def test_a_compiled_model_keeps_the_users_names(tmp_path: Path) -> None:
    model = torch.compile(mlp(), backend="eager")
    one = trained(model)  # type: ignore[arg-type]
    names = set(one.parts.state.capture().chunks)
    assert names == {f"model/{name}" for name in mlp().state_dict()}


def test_schedulers_and_scale_and_counts_come_back(tmp_path: Path) -> None:
    def session() -> Session:
        made = Session(precision="fp16")
        made.prepare(mlp(), ADAM, lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3]))
        return made

    one, two = session(), session()
    for _ in range(3):
        step(one)
    assert one.skipped > 0
    assert one.save(tmp_path, extras={"best": 0.5, "history": [1, (2, 3)]}) == f"step-{one.steps}"
    assert two.load(tmp_path) == {"best": 0.5, "history": [1, (2, 3)]}
    assert (two.steps, two.skipped) == (one.steps, one.skipped)
    assert two.schedulers[0].state_dict() == one.schedulers[0].state_dict()
    assert two.parts.optimizer.param_groups[0]["lr"] == one.parts.optimizer.param_groups[0]["lr"]


def test_an_fp32_checkpoint_begins_a_new_scale_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(mlp()).save(tmp_path)
    trained(mlp(), precision="fp16").load(tmp_path)
    assert "no loss scale" in capsys.readouterr().err


class Counter(nn.Module):
    """Keeps a tensor beside its buffers, each in one of torch's two ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way, self.count = nn.Linear(2, 1), way, torch.zeros(())

    def forward(self, x: torch.Tensor) -> Any:
        self.count = self.count + 1
        return self.linear(x)

    def get_extra_state(self) -> Any:
        return self.count.clone() if self.way == "extra" else None

    def set_extra_state(self, state: Any) -> None:
        self.count = self.count if state is None else state

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.way == "own":
            destination[f"{prefix}count"] = self.count.clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        self.count = state_dict.pop(f"{prefix}count", self.count)
        super()._load_from_state_dict(state_dict, prefix, *more)


@pytest.mark.parametrize("way", ["extra", "own"])
def test_a_tensor_that_a_module_makes_for_its_state_comes_back_through_the_module(way: str, tmp_path: Path) -> None:
    one, two = trained(Counter(way)), trained(Counter(way))
    step(one)
    step(one)
    one.save(tmp_path)
    two.load(tmp_path)
    assert two.parts.module.count == 2
    assert all(torch.equal(a, b) for a, b in zip(one.parts.module.parameters(), two.parts.module.parameters(), strict=True))


def test_state_that_is_wider_than_its_parameter_stays_so(tmp_path: Path) -> None:
    nadam = OptimizerSpec(torch.optim.NAdam, {"lr": 0.1})
    one, two = (trained(mlp(), nadam, precision="bf16-true") for _ in range(2))
    for _ in range(3):
        one.backward(one.forward(torch.ones(2, 2, dtype=torch.bfloat16)).square().sum())
        one.step()
    one.save(tmp_path)
    two.load(tmp_path)
    for mine, theirs in zip(one.parts.optimizer.state.values(), two.parts.optimizer.state.values(), strict=True):
        assert mine["mu_product"].dtype is theirs["mu_product"].dtype is torch.float32
        assert torch.equal(mine["mu_product"], theirs["mu_product"])


def test_an_optimizer_with_parameters_of_no_model_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    def more(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*parameters, nn.Parameter(torch.ones(1))], lr=0.1)

    with pytest.raises(CheckpointError, match="1 of its parameters are none of the model's"):
        trained(mlp(), OptimizerSpec(more)).save(tmp_path)
