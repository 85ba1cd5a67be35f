"""What a session is given by mistake: each is refused with what it should be, before anything is built or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from restoke import OptimizerSpec, Session
from restoke.errors import CheckpointError, SessionError, SpecError

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1})


@pytest.mark.parametrize("spec", [{"precision": "bf16"}, "spec.yaml"])
def test_a_spec_is_a_spec(spec: Any) -> None:
    with pytest.raises(SpecError, match=r"it is no Spec\. Instead: Spec\.read"):
        Session(spec)


@pytest.mark.parametrize(
    ("model", "optimizer", "scheduler", "said"),
    [
        (5, SGD, None, "model='int': it is no torch.nn.Module"),
        (nn.Linear(1, 1), torch.optim.SGD, None, "OptimizerSpec"),
        (nn.Linear(1, 1), OptimizerSpec(torch.optim.LBFGS), None, "its step needs closure"),
        (nn.Linear(1, 1), OptimizerSpec(torch.optim.Adam, {"fused": True, "foreach": True}), None, "Adam refuses them"),
        (nn.Linear(1, 1), SGD, 5, "it is no function of the optimizer"),
        (nn.Linear(1, 1), SGD, ReduceLROnPlateau, "its step needs metrics"),
    ],
)
def test_what_cannot_be_prepared_is_named(model: Any, optimizer: Any, scheduler: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Session().prepare(model, optimizer, scheduler)


@pytest.mark.parametrize("groups", ["*.bias", {"params": "*.bias"}, [5], 5])
def test_groups_are_a_list_of_mappings(groups: Any) -> None:
    with pytest.raises(SpecError, match="it is not a list of mappings"):
        OptimizerSpec(torch.optim.SGD, {"lr": 0.1}, groups)


@pytest.mark.parametrize("params", [5, [5], [torch.zeros(1)]])
def test_groups_name_their_parameters(params: Any) -> None:
    with pytest.raises(SpecError, match="parameters are named in a group"):
        OptimizerSpec(torch.optim.SGD, {"lr": 0.1}, ({"params": params},))


def test_keywords_are_a_mapping() -> None:
    with pytest.raises(SpecError, match="it is not a mapping of keywords"):
        OptimizerSpec(torch.optim.SGD, [0.1])  # type: ignore[arg-type]


def test_what_has_no_state_cannot_be_registered() -> None:
    with pytest.raises(SessionError, match="a int lacks state_dict or load_state_dict"):
        Session().register("epoch", 5)


def test_extras_have_names(tmp_path: Path) -> None:
    session = Session()
    session.prepare(nn.Linear(1, 1), SGD)
    with pytest.raises(CheckpointError, match="it is not a mapping of names to values"):
        session.save(tmp_path, extras=[1])  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_sessions_that_share_a_scaler_have_windows_of_one_length() -> None:
    one = Session(precision="fp16", accumulate=2)
    assert Session(precision="fp16", accumulate=2, scaler=one.scaler).scaler is one.scaler
    with pytest.raises(SpecError, match="accumulate=1: the session that the scaler is shared with has accumulate=2"):
        Session(precision="fp16", scaler=one.scaler)
