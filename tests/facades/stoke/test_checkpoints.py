"""A Stoke object goes on from its checkpoint as if never stopped; Stoke's own files come in by an explicit way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from restoke import AMPConfig, ClipGradNormConfig, Stoke, StokeScheduler
from restoke.errors import CheckpointError, DataError, SessionError, SpecError
from tests.facades.stoke.samples import CE, SGD, batches, micro_step, net, samples, stoke, weights

ADAM = {"optimizer": torch.optim.AdamW, "optimizer_kwargs": {"lr": 0.01}}
STEPS = StokeScheduler(scheduler=torch.optim.lr_scheduler.StepLR, scheduler_kwargs={"step_size": 2, "gamma": 0.5})


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def built(begin: int, **options: Any) -> Stoke:
    """Everything that a checkpoint must bring back, begun from another seed."""
    torch.manual_seed(begin)
    scaled = {"fp16": "amp", "configs": [AMPConfig(init_scale=4.0, growth_interval=2)]}
    losses = [CE, lambda output, target: output.square().mean()]
    return stoke(losses, 4, model=dropping(), optimizer=ADAM, grad_accum_steps=2, scheduler=STEPS, **scaled | options)


def run(it: Stoke, loader: Any, epochs: int, stop: int = -1) -> list[Any]:
    """What can be told of each micro-batch; `stop` counts them down."""
    told = []
    for _ in range(epochs):
        for x, y in loader:
            micro_step(it, x, y)
            counts = (it.optimizer_steps, it.backward_steps, it.grad_accum_counter)
            told.append((it.step_loss, it.ema_loss, counts, it.optimizer.param_groups[0]["lr"], weights(it.model_access)))
            stop -= 1
            if stop == 0:
                return told
    return told


# 1.7, B47: EMA, generators, scheduler, sampler and the gradients of a half-finished window were not saved
@pytest.mark.parametrize("at", [2, 3, 7, 8])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_loaded_run_goes_on_bit_for_bit(at: int, seed: int | None, tmp_path: Path) -> None:
    data = samples(27)
    whole, stopped, resumed = built(1, seed=seed), built(1, seed=seed), built(2, seed=seed)
    torch.manual_seed(9)
    expected = run(whole, whole.DataLoader(data, shuffle=True), epochs=3)
    torch.manual_seed(9)
    loader = stopped.DataLoader(data, shuffle=True)
    begun = run(stopped, loader, epochs=3, stop=at)
    assert begun == expected[:at]
    path, tag = stopped.save(tmp_path, name="run", extras={"epoch": 1, "best": torch.ones(2)})
    torch.manual_seed(77)
    same = resumed.DataLoader(data, shuffle=True)
    extras = resumed.load(path, tag)
    assert (extras["epoch"], extras["best"].tolist()) == (1, [1.0, 1.0])
    assert begun + run(resumed, same, epochs=4, stop=21 - at) == expected
    assert resumed.scaler is not None
    assert whole.scaler is not None
    assert resumed.scaler.get_scale() == whole.scaler.get_scale()


def test_a_loader_that_is_made_after_the_load_takes_up_its_place(tmp_path: Path) -> None:
    data, order = [(torch.zeros(6), i % 3) for i in range(12)], list(range(12))
    it = stoke(batch_size=2, seed=3)
    gone, loader = it.DataLoader(data), it.DataLoader(order, shuffle=True)
    del gone
    iterator = iter(loader)
    first = [next(iterator).tolist() for _ in range(2)]
    it.save(tmp_path)
    rest = [batch.tolist() for batch in iterator]
    again = stoke(batch_size=2, seed=3)
    again.load(tmp_path)
    again.DataLoader(data)
    assert [batch.tolist() for batch in again.DataLoader(order, shuffle=True)] == rest
    assert sorted(index for batch in first + rest for index in batch) == order


# B45: the default name was a new UUID in each process
def test_the_tag_has_name_and_backward_steps_and_the_newest_needs_none(tmp_path: Path) -> None:
    it, (x, y) = stoke(), batches(1)[0]
    assert it.save(tmp_path, extras={"at": 0}) == (str(tmp_path), "stoke-checkpoint-backward-step-0")
    micro_step(it, x, y)
    assert it.save(path=str(tmp_path), name="model", extras={"at": 1})[1] == "stoke-model-backward-step-1"
    assert it.save(tmp_path, "model", "pt", extras={"at": 2})[1] == "stoke-model-backward-step-1.pt"
    assert it.load(tmp_path)["at"] == 2
    assert it.load(path=tmp_path, tag="stoke-model-backward-step-1")["at"] == 1
    assert it.load(tmp_path, "stoke-checkpoint-backward-step-0") == {"at": 0}
    assert (it.backward_steps, it.optimizer_steps) == (0, 0)
    with pytest.raises(CheckpointError, match="did you mean 'stoke-model-backward-step-1"):
        it.load(tmp_path, "stoke-modl-backward-step-1")


def test_a_folder_is_made_unless_that_is_forbidden(tmp_path: Path) -> None:
    it = stoke()
    with pytest.raises(CheckpointError, match=r"path=.*there is no such folder. Instead: create_directory=True"):
        it.save(tmp_path / "new", create_directory=False)
    assert not (tmp_path / "new").exists()
    it.save(tmp_path / "new" / "er")
    it.save(tmp_path / "new" / "er", name="again", create_directory=False)


def test_between_backward_and_step_nothing_can_be_saved_or_flushed(tmp_path: Path) -> None:
    it, (x, y) = stoke(), batches(1)[0]
    it.backward(it.loss(it.model(x), y))
    with pytest.raises(SessionError, match="it would lose the gradients of this micro-batch"):
        it.save(tmp_path)
    with pytest.raises(SessionError, match="flush after step"):
        it.flush()
    it.step()
    it.save(tmp_path)
    it.backward(it.loss(it.model(x), y))
    it.load(tmp_path)
    assert it.grad_accum_counter == 0
    it.save(tmp_path)


def test_another_number_of_losses_does_not_fit(tmp_path: Path) -> None:
    stoke().save(tmp_path)
    with pytest.raises(CheckpointError, match="loss=1: this run has 2"):
        stoke([CE, CE]).load(tmp_path)


# B46: a checkpoint with grad_clip held a pickled settings object, which torch no longer loads
def test_clipping_is_no_hindrance_to_loading(tmp_path: Path) -> None:
    it = stoke(grad_clip=ClipGradNormConfig(1.0, 2.0))
    it.load(*it.save(tmp_path))


# B48: loading a checkpoint without a scaler into an fp16 run passed None to the scaler
def test_a_run_in_fp32_goes_on_in_fp16_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full, half, data = stoke(), stoke(fp16="amp"), batches(2)
    micro_step(full, *data[0])
    half.load(*full.save(tmp_path))
    assert "has no loss scale" in capsys.readouterr().err
    assert weights(half.model_access) == weights(full.model_access)
    micro_step(half, *data[1])
    full.load(*half.save(tmp_path, name="half"))
    assert (full.optimizer_steps, full.backward_steps) == (2, 2)
    assert weights(full.model_access) == weights(half.model_access)


def test_a_foreign_folder_leaves_all_as_it_was(tmp_path: Path) -> None:
    it = stoke()
    micro_step(it, *batches(1)[0])
    before = weights(it.model_access)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"no checkpoint of restoke, but notes.txt"):
        it.load(tmp_path)
    assert (weights(it.model_access), it.backward_steps) == (before, 1)


class OldClip:
    """Pickled as Stoke's own settings are, and unpickled as ours."""

    def __init__(self) -> None:
        self.max_norm, self.norm_type = 1.0, 2.0


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """What Stoke's `save` wrote after two steps."""
    module = ModuleType("stoke.configs")
    OldClip.__module__, OldClip.__qualname__ = "stoke.configs", "ClipGradNormConfig"
    OldClip.__name__ = "ClipGradNormConfig"
    module.ClipGradNormConfig = OldClip  # type: ignore[attr-defined]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(2):
        CE(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    path = tmp_path / "stoke-old-backward-step-5.pt"
    counters = {"backward_step": 5, "grad_accum_step": 1, "optimizer_step": 2}
    states = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    rest = {"scaler_state_dict": None, "extras": {"note": "old"}, "stoke_status": {"grad_clip": OldClip()}}
    sys.modules.update({"stoke": ModuleType("stoke"), "stoke.configs": module})
    try:
        torch.save(counters | states | rest, path)
    finally:
        del sys.modules["stoke"], sys.modules["stoke.configs"]
    return path


@pytest.mark.parametrize("whole_path", [True, False])
def test_stokes_own_files_load_by_unsafe_only_and_training_goes_on(
    old_file: Path, whole_path: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    it = stoke(grad_accum_steps=2)
    micro_step(it, *batches(1, seed=3)[0])  # a window that the load must drop
    with pytest.raises(CheckpointError, match="cannot be read without unpickling"):
        it.load(old_file.parent, old_file.name)
    found = it.load(old_file, unsafe=True) if whole_path else it.load(old_file.parent, old_file.name, unsafe=True)
    assert found == {"note": "old"}
    assert (it.optimizer_steps, it.backward_steps, it.grad_accum_counter) == (2, 5, 0)
    told = capsys.readouterr().err
    assert "within a window of micro-batches" in told
    assert "loss scale" not in told
    assert (it.step_loss, it.ema_loss) == (0.0, 0.0)
    model, data = net(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for group in (data[:1], data[1:2], data[2:]):
        for x, y in group:
            (CE(model(x), y) / len(group)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for x, y in data[2:]:
        micro_step(it, x, y)
    assert weights(it.model_access) == weights(model)


def test_the_loss_scale_of_stokes_files_comes_with_them(old_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    it = stoke(fp16="amp", configs=[AMPConfig(init_scale=8.0)])
    it.load(old_file, unsafe=True)
    assert "has no loss scale: the scale starts anew" in capsys.readouterr().err
    assert it.scaler is not None
    assert it.scaler.get_scale() == 8.0
    data = torch.load(old_file, weights_only=False, pickle_module=_our_pickle())
    scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    torch.save(data | {"scaler_state_dict": scaler.state_dict(), "stoke_status": None}, old_file)
    it.load(old_file, unsafe=True)
    assert it.scaler.get_scale() == 32.0


def _our_pickle() -> Any:
    from restoke.checkpoint.unsafe import _pickle_for_stoke

    return _pickle_for_stoke()


# B49: the default prefetch_factor, without workers, is an error in torch. B50: a batch_sampler never worked
def test_a_loader_takes_torchs_parameters_but_for_the_batch_size() -> None:
    it, data = stoke(batch_size=4), samples(10)
    assert [len(y) for _, y in it.DataLoader(data)] == [4, 4, 2]
    assert [len(y) for _, y in it.DataLoader(data, False, None, None, 0, None, False, True)] == [4, 4]
    assert [len(y) for _, y in it.DataLoader(data, batch_sampler=[[0, 1, 2, 3, 4], [5]])] == [5, 1]
    assert [len(y) for _, y in it.DataLoader(dataset=data, sampler=[3, 1])] == [2]
    with pytest.raises(DataError, match="batch_size=2: a Stoke object's loaders have its batch_size_per_device"):
        it.DataLoader(data, batch_size=2)
    with pytest.raises(SpecError, match="did you mean 'num_workers'"):
        it.DataLoader(data, num_worker=2)
    with pytest.raises(DataError, match="there are no workers: num_workers=0"):
        it.DataLoader(data, prefetch_factor=2)


def test_a_loader_of_the_seed_gives_the_same_order_again() -> None:
    orders = [[int(y) for y in stoke(batch_size=1, seed=seed).DataLoader(range(20), shuffle=True)] for seed in (4, 4, 5)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(20))


def test_a_sgd_with_groups_is_saved_by_name(tmp_path: Path) -> None:
    groups = [{"params": "*.bias", "weight_decay": 0.5}]
    it, again = (stoke(optimizer={**SGD, "groups": groups}) for _ in range(2))
    data = batches(2)
    micro_step(it, *data[0])
    again.load(*it.save(tmp_path))
    for one in (it, again):
        micro_step(one, *data[1])
    assert weights(it.model_access) == weights(again.model_access)
