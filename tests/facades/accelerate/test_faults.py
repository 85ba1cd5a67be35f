"""What Accelerate does silently, one process at a time: each is right here, or refused with what to do instead."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from restoke.errors import DataError, RestokeError, SessionError, SpecError
from restoke.facades.accelerate import (
    Accelerator,
    AORecipeKwargs,
    AutocastKwargs,
    DataLoaderConfiguration,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    GradientState,
    GradScalerKwargs,
    PartialState,
    ProfileKwargs,
)
from restoke.facades.accelerate.memory import find_executable_batch_size
from restoke.facades.accelerate.operations import find_batch_size, honor_type, recursively_apply, send_to_device
from tests.facades.accelerate.on_ranks import CE, dataset, net


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"gradient_accumulation_steps": 0}, "a whole number from 1"),
        ({"mixed_precision": "fp17"}, "did you mean 'fp16'"),
        ({"mixed_precision": "bf16", "fp16": True}, "one of the two"),
        ({"even_batches": True}, "DataLoaderConfiguration(even_batches=True)"),
        ({"grad_accum": 2}, "no such keyword"),
        (
            {"gradient_accumulation_steps": 4, "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=2)},
            "num_steps=2",
        ),
        ({"kwargs_handlers": [3]}, "it is no handler"),
        ({"kwargs_handlers": [AutocastKwargs(), AutocastKwargs()]}, "given twice"),
        ({"kwargs_handlers": [AutocastKwargs(enabled=False)]}, "AutocastKwargs.enabled"),
        ({"kwargs_handlers": [GradScalerKwargs(enabled=False)]}, "GradScalerKwargs.enabled"),
        ({"kwargs_handlers": [AORecipeKwargs(config=3)]}, "AORecipeKwargs.config"),
        ({"kwargs_handlers": [DistributedDataParallelKwargs(dim=1)]}, "DistributedDataParallelKwargs.dim"),
        ({"kwargs_handlers": [DistributedDataParallelKwargs(comm_hook="x")]}, "no such hook"),
        ({"fsdp_plugin": FullyShardedDataParallelPlugin()}, "strategy='fsdp'"),  # needs several processes: Accelerate ran DDP
        ({"fsdp_plugin": FullyShardedDataParallelPlugin(forward_prefetch=True)}, "forward_prefetch"),
        ({"fsdp_plugin": FullyShardedDataParallelPlugin(sharding_strategy="HALF")}, "sharding_strategy"),
        ({"deepspeed_plugin": DeepSpeedPlugin(zero_stage=2)}, "strategy='deepspeed-2'"),
        ({"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config={})}, "DeepSpeedPlugin.hf_ds_config"),
        ({"deepspeed_plugin": DeepSpeedPlugin(zero3_init_flag=True)}, "DeepSpeedPlugin.zero3_init_flag"),
        ({"megatron_lm_plugin": object()}, "no such plugin"),
        ({"dynamo_backend": "eager"}, "inductor"),
        ({"dynamo_plugin": SimpleNamespace(backend="INDUCTOR", mode="max-autotune")}, "dynamo_plugin.mode"),
        ({"dynamo_plugin": SimpleNamespace(backend="INDUCTOR", fullgraph=True)}, "dynamo_plugin.fullgraph"),
        ({"log_with": "wandbb"}, "no tracker of this name"),
        ({"log_with": 3}, "no method log"),
    ],
)
def test_a_setting_is_obeyed_or_refused(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(RestokeError) as refused:
        Accelerator(**keywords).init_trackers("run")
    assert said in str(refused.value)


def test_split_batches_in_the_constructor_is_obeyed() -> None:
    assert Accelerator(split_batches=True).split_batches


def test_no_dynamo_is_none() -> None:
    assert Accelerator(dynamo_backend="no").session.spec.compile == "none"
    assert Accelerator(dynamo_plugin=SimpleNamespace(backend="NO")).session.spec.compile == "none"


def test_an_explicit_argument_is_not_overridden_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "7")
    assert Accelerator(gradient_accumulation_steps=2).gradient_accumulation_steps == 2


def test_the_launcher_overrides_what_the_script_says(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESTOKE_SPEC", '{"accumulate": 3, "precision": "bf16"}')
    accelerator = Accelerator(gradient_accumulation_steps=2)
    assert (accelerator.gradient_accumulation_steps, accelerator.mixed_precision) == (3, "bf16")
    assert "accumulate=3 (the script: 2)" in capfd.readouterr().err


def test_two_accelerators_may_be_of_two_precisions() -> None:
    assert [Accelerator(mixed_precision=word).session.spec.precision for word in ("no", "bf16")] == ["fp32", "bf16"]


def test_nothing_to_prepare_and_no_loss_are_refused() -> None:
    accelerator = Accelerator()
    with pytest.raises(SessionError, match="nothing to prepare"):
        accelerator.prepare()
    model = accelerator.prepare(net())
    for loss in (None, 3.0, torch.tensor(1.0)):
        with pytest.raises(SessionError, match="loss"):
            accelerator.backward(loss)
    del model


def test_prepare_returns_what_it_was_given_in_order_and_twice_is_once() -> None:
    accelerator = Accelerator()
    model, optimizer = net(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset(4))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    given = (schedule, "text", optimizer, loader, model, None)
    prepared = accelerator.prepare(*given)
    assert prepared[1] == "text"
    assert prepared[5] is None
    assert prepared[2].optimizer is optimizer
    assert prepared[0].scheduler is schedule
    again, same = accelerator.prepare(*given), accelerator.prepare(*prepared)
    assert all(a is b is c for a, b, c in zip(prepared, again, same, strict=True))
    assert accelerator.prepare(model) is prepared[4]
    assert len(accelerator._held.trained) == 1


def test_a_scheduler_built_on_what_prepare_returned_steers_it() -> None:
    accelerator = Accelerator()
    model = net()
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, own)
    schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    accelerator.backward(CE(model(torch.ones(2, 6)), torch.tensor([0, 1])))
    optimizer.step()
    schedule.step()
    assert own.param_groups[0]["lr"] == 0.05


def test_clipping_twice_and_unscaling_before_are_one_unscaling() -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    model = net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(CE(model(torch.ones(2, 6)), torch.tensor([0, 1])))
    accelerator.unscale_gradients()
    norm = accelerator.clip_grad_norm_(model.parameters(), 0.01)
    assert norm is not None
    assert norm < 100  # of gradients as they are, not times 65536
    assert accelerator.clip_grad_norm_(model.parameters(), 0.01) <= 0.0101
    optimizer.step()
    assert not optimizer.step_was_skipped


def test_an_overflow_skips_the_step_and_the_scheduler() -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    model = net()
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, schedule = accelerator.prepare(model, own, torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5))
    accelerator.backward(CE(model(torch.ones(2, 6)), torch.tensor([0, 1])) * 1e38)
    optimizer.step()
    schedule.step()
    assert accelerator.optimizer_step_was_skipped
    assert own.param_groups[0]["lr"] == 0.1


def test_outputs_are_float32_under_mixed_precision_and_the_wrapper_comes_off() -> None:
    accelerator = Accelerator(mixed_precision="bf16")
    model = net()
    prepared = accelerator.prepare(model)
    assert prepared(torch.ones(2, 6)).dtype == torch.float32
    assert pickle.dumps(accelerator.unwrap_model(prepared, keep_fp32_wrapper=False))
    assert "forward" not in vars(model)
    copy.deepcopy(model)


def test_a_state_that_was_reset_says_so() -> None:
    accelerator = Accelerator()
    state = accelerator.state
    type(state)._reset_state()
    with pytest.raises(AttributeError, match="_reset_state"):
        state.device  # noqa: B018
    Accelerator()


def test_the_same_accelerator_comes_out_of_a_pickle() -> None:
    accelerator = Accelerator()
    assert pickle.loads(pickle.dumps(accelerator)) is accelerator
    assert copy.deepcopy(accelerator) is accelerator


def test_reduce_batch_size_fn_is_kept_by_the_decorator() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: tried[-1] // 2)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        raise RuntimeError("CUDA out of memory.")

    with pytest.raises(RuntimeError, match="No executable batch size"):
        train()
    assert tried == [8, 4, 2, 1]
    with pytest.raises(TypeError, match="first argument"):
        train(8)


def test_tensor_utilities_keep_types_and_say_what_they_take() -> None:
    class Pair(tuple):  # type: ignore[type-arg]
        __slots__ = ()

    nested = {"a": (torch.ones(2), [torch.zeros(2, 1)]), "b": "text"}
    moved = send_to_device(nested, "cpu")
    assert moved["b"] == "text"
    assert find_batch_size(nested) == 2
    assert isinstance(honor_type(Pair((1, 2)), iter([3, 4])), Pair)
    assert recursively_apply(lambda t: t + 1, nested)["a"][0].tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match="torch.tensor"):
        recursively_apply(lambda t: t, [1], error_on_other_type=True)


def test_loaders_say_where_they_are() -> None:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration())
    loader = accelerator.prepare(DataLoader(dataset(5), batch_size=2))
    told = []
    for _ in loader:
        assert accelerator.gradient_state.active_dataloader is loader
        told.append((accelerator.gradient_state.end_of_dataloader, GradientState().remainder))
    assert told == [(False, 1), (False, 1), (True, 1)] or told[-1] == (True, 1)
    assert accelerator.gradient_state.active_dataloader is None


def test_any_object_with_log_is_a_tracker() -> None:
    seen: list[Any] = []

    class Mine:
        name = "mine"

        def log(self, values: Any, step: int | None = None) -> None:
            seen.append((dict(values), step))

    accelerator = Accelerator(log_with=Mine())
    accelerator.init_trackers("run", config={"lr": 0.1})
    accelerator.log({"loss": 1.0}, step=3)
    assert seen == [({"loss": 1.0}, 3)]
    assert isinstance(accelerator.get_tracker("mine", unwrap=True), Mine)
    with pytest.raises(SessionError, match="did you mean 'mine'"):
        accelerator.get_tracker("mime")
    accelerator.end_training()


def test_the_profiler_writes_its_trace(tmp_path: Path) -> None:
    accelerator = Accelerator()
    with accelerator.profile(ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path))):
        torch.ones(2) + 1
    assert (tmp_path / "profile_0.json").exists()
    with pytest.raises(SpecError, match="no such activity"), accelerator.profile(ProfileKwargs(activities=["gpux"])):
        pass


def test_gathering_of_one_process_and_its_refusals() -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(dataset(5), batch_size=2))
    for _, y in loader:
        assert accelerator.gather_for_metrics(y).tolist() == y.tolist()
        with pytest.raises(DataError, match="2 samples|1 samples"):
            accelerator.gather_for_metrics(torch.ones(3))
    assert PartialState().num_processes == 1
