"""Stoke's old files come in through one explicit door, without Stoke."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn

from restoke import checkpoint
from restoke.configs import ClipGradNormConfig
from restoke.errors import CheckpointError
from restoke.parts import Saved
from tests.checkpoint.states import same


@pytest.fixture
def stoke(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Stoke's module of settings as it was: mutable attrs classes. It is gone once the file is written."""
    module = types.ModuleType("stoke.configs")
    for name, fields in {"ClipGradNormConfig": ["max_norm", "norm_type"], "Unheard": ["x"]}.items():
        cls = attrs.make_class(name, fields)
        cls.__module__ = "stoke.configs"
        setattr(module, name, cls)
    monkeypatch.setitem(sys.modules, "stoke", types.ModuleType("stoke"))
    monkeypatch.setitem(sys.modules, "stoke.configs", module)
    return module


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.5}], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def old_file(path: Path, **changed: Any) -> Path:
    model, optimizer = trained()
    data = {
        "backward_step": 6,
        "grad_accum_step": 1,
        "optimizer_step": 3,
        "stoke_status": {"gpu": False, "grad_clip": None},
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scaler_state_dict": None,
        "extras": {"epoch": 2},
    }
    torch.save(data | changed, path)
    return path


NAMES = [name for name, _ in trained()[0].named_parameters()]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stoke.configs")
    monkeypatch.delitem(sys.modules, "stoke")


def test_weights_moments_and_counters_are_those_that_stoke_saved(tmp_path: Path) -> None:
    model, optimizer = trained()
    file = checkpoint.read_stoke(old_file(tmp_path / "a.pt"), NAMES, "AdamW")
    saved: Saved = file
    for name, value in model.state_dict().items():
        assert same(saved.read(f"model/{name}"), value)
        assert (saved.shape(f"model/{name}"), saved.dtype(f"model/{name}")) == (tuple(value.shape), value.dtype)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            assert same(saved.read(f"optimizer/{name}/{key}"), value)
    groups = saved.values["optimizer"]["groups"]
    assert [group["params"] for group in groups] == [NAMES[:2], NAMES[2:]]
    assert [group["lr"] for group in groups] == [0.1, 0.5]
    assert saved.values["counters"] == {"optimizer_step": 3, "backward_step": 6, "grad_accum_step": 1}
    assert saved.values["extras"] == {"epoch": 2}
    assert len(saved.keys()) == len(model.state_dict()) + 3 * len(NAMES)


def test_a_box_of_a_tensor_can_be_read(tmp_path: Path) -> None:
    file = checkpoint.read_stoke(old_file(tmp_path / "a.pt"), NAMES, "AdamW")
    whole = file.read("model/0.weight")
    assert same(file.read("model/0.weight", (1, 0), (2, 2)), whole[1:3, :2].clone())
    whole.zero_()
    assert file.read("model/0.weight").any()
    with pytest.raises(CheckpointError, match=r"did you mean 'model/0\.weight'"):
        file.read("model/0.wait")


def test_a_strategys_state_restores_from_it(tmp_path: Path) -> None:
    from restoke.state import TorchState

    model, optimizer = trained()
    old = {name: value.clone() for name, value in model.state_dict().items()}
    file = old_file(tmp_path / "a.pt")
    for parameter in model.parameters():
        optimizer.state[parameter]["exp_avg"].zero_()
        parameter.data.zero_()
    assert TorchState(model, optimizer).restore(checkpoint.read_stoke(file, NAMES, "AdamW"), strict=True) == []
    assert same(dict(model.state_dict()), old)
    assert same(optimizer.state_dict(), trained()[1].state_dict())


def test_settings_of_stoke_become_ours_though_stoke_is_not_installed(
    tmp_path: Path, stoke: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "a.pt", stoke_status={"grad_clip": stoke.ClipGradNormConfig(5.0, 2.0)})
    forget(monkeypatch)
    clip = checkpoint.read_stoke(path, NAMES, "AdamW").values["status"]["grad_clip"]
    assert type(clip) is ClipGradNormConfig
    assert (clip.max_norm, clip.norm_type) == (5.0, 2.0)


def test_another_class_of_stoke_is_refused_by_its_name(
    tmp_path: Path, stoke: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "a.pt", extras={"x": stoke.Unheard(1)})
    forget(monkeypatch)
    with pytest.raises(CheckpointError, match=r"stoke\.configs\.Unheard"):
        checkpoint.read_stoke(path, NAMES, "AdamW")


def test_the_older_kind_of_file_loads_too(tmp_path: Path) -> None:
    model, optimizer = trained()
    parts = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    rest = {"backward_step": 0, "grad_accum_step": 0, "optimizer_step": 0, "scaler_state_dict": None, "extras": None}
    torch.save(parts | rest, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert checkpoint.read_stoke(tmp_path / "a.pt", NAMES, "AdamW").values["extras"] is None


def test_other_names_than_the_optimizer_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="its optimizer has 6 parameters"):
        checkpoint.read_stoke(old_file(tmp_path / "a.pt"), NAMES[:-1], "AdamW")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"text"])
def test_what_is_no_torch_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be unpickled"):
        checkpoint.read_stoke(tmp_path / "a.pt", NAMES, "AdamW")


def test_a_missing_file_and_a_foreign_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        checkpoint.read_stoke(tmp_path / "a.pt", NAMES, "AdamW")
    torch.save({"model_state_dict": {}}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="no file of Stoke's: optimizer_step, backward_step"):
        checkpoint.read_stoke(tmp_path / "b.pt", NAMES, "AdamW")
