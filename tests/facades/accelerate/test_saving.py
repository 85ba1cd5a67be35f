"""`save_state` and `load_state`: at any moment, under another strategy, several models, and not on one rank alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from restoke.errors import CheckpointError, SessionError
from restoke.facades.accelerate import Accelerator
from tests import ranks
from tests.facades.accelerate import saving_work as work
from tests.facades.accelerate.close import close
from tests.facades.accelerate.on_ranks import dataset, net


@pytest.mark.parametrize("strategies", [("ddp", "ddp"), ("ddp", "fsdp"), ("fsdp", "zero1")])
def test_a_run_goes_on_in_the_middle_of_an_epoch_and_of_a_window(strategies: tuple[str, str], tmp_path: Path) -> None:
    whole = ranks.run(2, work.uninterrupted)
    for mine, bare in zip(ranks.run(2, work.interrupted, str(tmp_path), strategies), whole, strict=True):
        assert close(mine, bare, 1e-5)


def test_save_state_on_one_rank_only_is_an_error_that_names_the_other() -> None:
    told, _ = ranks.run(2, work.saved_on_one_rank)
    assert "rank 1 did not call it within 0.5 s" in told
    assert "outside of is_main_process" in told


def test_ranks_that_save_and_load_at_once_are_told_apart_on_both() -> None:
    zero, one = ranks.run(2, work.called_apart)
    assert "rank 1 is in load_state" in zero
    assert "rank 0 is in save_state" in one


def test_models_that_share_an_optimizer_are_saved_as_one(tmp_path: Path) -> None:
    for told in ranks.run(2, work.several_models, str(tmp_path)):
        paths, kept, same, hook, iteration = told
        assert paths == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
        assert kept == ["checkpoint_1", "checkpoint_2"]
        assert same
        assert hook == [2, 2]
        assert iteration == 3  # Accelerate did not restore it


def test_nothing_says_where_to_save() -> None:
    with pytest.raises(CheckpointError, match="automatic_checkpoint_naming"):
        Accelerator().save_state()


def test_what_cannot_be_saved_is_not_registered() -> None:
    with pytest.raises(SessionError, match="state_dict"):
        Accelerator().register_for_checkpointing(3)


@pytest.mark.parametrize(("size", "files"), [("10GB", ["model.safetensors"]), (300, None)])
def test_weights_alone_are_what_other_libraries_read(size: Any, files: list[str] | None, tmp_path: Path) -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(net())
    accelerator.save_model(model, tmp_path, max_shard_size=size)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert files is None or found == files
    weights = {key: value for path in tmp_path.glob("*.safetensors") for key, value in load_file(path).items()}
    own = net().state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[key], own[key]) for key in own)
    accelerator.save_model(model, tmp_path)  # files that are not its own any more are gone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_loaders_are_saved_without_a_model_and_into_an_empty_folder(tmp_path: Path) -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(dataset(8), batch_size=2, shuffle=True))
    rest = []
    for step, (x, _) in enumerate(loader):
        if step == 1:
            accelerator.save_state(tmp_path)
        if step > 1:
            rest.append(x.tolist())
    accelerator.load_state(tmp_path)
    assert [x.tolist() for x, _ in loader] == rest


def test_a_folder_with_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    accelerator = Accelerator()
    accelerator.prepare(net())
    with pytest.raises(CheckpointError, match="would be lost"):
        accelerator.save_state(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_model_that_a_hook_has_loaded_keeps_it(tmp_path: Path) -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(net())
    accelerator.save_state(tmp_path / "state")

    def load(models: list[Any], folder: str) -> None:
        with torch.no_grad():
            models.pop()[0].weight.fill_(5.0)

    handle = accelerator.register_load_state_pre_hook(load)
    accelerator.load_state(tmp_path / "state")
    assert model[0].weight.unique().tolist() == [5.0]
    handle.remove()
    accelerator.load_state(tmp_path / "state")
    assert torch.equal(model[0].weight, net()[0].weight)
