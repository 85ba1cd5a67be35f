"""Names in files of weights become those of the model: prefixes of wrappers, tied weights, what is no tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from restoke.checkpoint import open_weights
from restoke.state import TorchState
from tests.checkpoint.weight_files import State, Tied, as_safetensors, as_shards, as_torch, read_all, same, saved


@pytest.mark.parametrize("form", [as_torch, as_safetensors, as_shards])
@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["module.a.w", "module.b.w"], ["a.w", "b.w"]),
        (["_orig_mod.a.w", "_orig_mod.b.w"], ["a.w", "b.w"]),
        (["module._orig_mod.a.w", "module._orig_mod.b.w"], ["a.w", "b.w"]),
        (["_orig_mod.module.a.w", "_orig_mod.module.b.w"], ["a.w", "b.w"]),
        (["a._orig_mod.w", "b.w"], ["a.w", "b.w"]),
        (["module.a.w", "b.w"], ["b.w", "module.a.w"]),
    ],
)
def test_what_wrappers_put_before_names_is_removed_and_said(
    tmp_path: Path, form: Callable[[Path, State], Path], names: list[str], own: list[str]
) -> None:
    weights = open_weights(form(tmp_path, {name: torch.ones(i + 1) for i, name in enumerate(names)}))
    assert sorted(weights.keys()) == [f"model/{name}" for name in own]
    assert bool(weights.notes) == (sorted(names) != own)
    assert all("was removed from the names" in note for note in weights.notes)


def test_what_compile_adds_is_removed_even_where_the_model_is_compiled(tmp_path: Path) -> None:
    path = as_safetensors(tmp_path, {"module._orig_mod.w": torch.ones(1)})
    for names in (["_orig_mod.w"], ["w"]):
        assert set(open_weights(path, names=names).keys()) == {"model/w"}
    assert set(open_weights(path, names=["_orig_mod.module.w"]).keys()) == {"model/module.w"}


def test_a_prefix_stays_where_the_model_has_it_too(tmp_path: Path) -> None:
    path = as_safetensors(tmp_path, {"module.w": torch.ones(1), "module.b": torch.ones(2)})
    assert set(open_weights(path, names=["module.w", "module.b"]).keys()) == {"model/module.w", "model/module.b"}
    assert set(open_weights(path, names=["w", "b"]).keys()) == {"model/w", "model/b"}
    doubled = as_safetensors(tmp_path, {"module.module.w": torch.ones(1)})
    assert set(open_weights(doubled, names=["module.w"]).keys()) == {"model/module.w"}


@pytest.mark.parametrize("form", ["torch", "safetensors", "checkpoint"])
def test_tied_weights_are_one_tensor_with_another_name(tmp_path: Path, form: str) -> None:
    model = Tied()
    if form == "torch":
        torch.save({"module." + name: tensor for name, tensor in model.state_dict().items()}, tmp_path / "x")
    elif form == "safetensors":
        save_model(model, str(tmp_path / "x"))
    else:
        saved(tmp_path / "x", model)
    weights = open_weights(tmp_path / "x")
    names = {"embed.weight", "head.weight"}
    ((alias, owner),) = weights.values["model"]["aliases"].items()
    assert {alias, owner} == names
    assert len(weights.keys()) == len(model.state_dict()) - 1
    other = Tied()
    assert TorchState(other, torch.optim.SGD(other.parameters())).restore(weights, strict=True) == []
    assert same(other.state_dict(), model.state_dict())


def test_metadata_that_names_a_tensor_of_the_file_ties_nothing(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(1), "b": torch.zeros(1)}
    save_file(tensors, tmp_path / "x", metadata={"a": "b", "c": "nothing", "d": "b"})
    weights = open_weights(tmp_path / "x")
    assert weights.values["model"]["aliases"] == {"d": "b"}
    assert same(read_all(weights), tensors)


def test_parts_of_one_tensor_are_not_taken_for_the_same(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    square = whole[:, :3]
    tensors = {"whole": whole, "rows": whole[:2], "turned": whole.T, "square": square, "square turned": square.T}
    torch.save(tensors, tmp_path / "x")
    weights = open_weights(tmp_path / "x")
    assert weights.values["model"]["aliases"] == {}
    assert same(read_all(weights), tensors)


def test_parameters_and_what_is_no_tensor_come_out(tmp_path: Path) -> None:
    torch.save({"w": nn.Parameter(torch.ones(2)), "layer._extra_state": {"amax": [1.0]}}, tmp_path / "x.pt")
    weights = open_weights(tmp_path / "x.pt")
    assert type(weights.read("model/w")) is Tensor
    assert weights.values["model"]["extra"] == {"layer._extra_state": {"amax": [1.0]}}
