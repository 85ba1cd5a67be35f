"""Stoke's verbs train as bare PyTorch does, in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from restoke import AMPConfig, ClipGradConfig, ClipGradNormConfig, StokeScheduler
from restoke.errors import SessionError
from tests.facades.stoke.samples import CE, batches, by_hand, micro_step, net, samples, stoke, weights

CLIP = ClipGradNormConfig(max_norm=0.5, norm_type=2.0)


def trained(data: list[tuple[Tensor, Tensor]], **options: Any) -> list[list[float]]:
    it = stoke(**options)
    for x, y in data:
        micro_step(it, x, y)
    return weights(it.model_access)


def test_the_four_verbs_are_a_hand_written_loop_to_the_last_bit() -> None:
    data = batches(8)
    assert trained(data) == by_hand(data)
    assert trained(data, grad_accum_steps=4, grad_clip=CLIP) == by_hand(data, accumulate=4, clip=0.5)
    assert trained(data, grad_accum_steps=None, grad_clip=0.5) == by_hand(data, clip=0.5)


def test_values_are_clipped_as_torch_does() -> None:
    data, model = batches(3), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in data:
        CE(model(x), y).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    assert trained(data, grad_clip=ClipGradConfig(0.01)) == weights(model)


# B35, B36: without CUDA, Stoke dropped fp16 without a word, and its scaler and autocast are deprecated
@pytest.mark.parametrize("option", [{"fp16": "amp"}, {"precision": "fp16"}])
def test_fp16_is_autocast_and_a_loss_scale_on_the_cpu_too(option: dict[str, str]) -> None:
    data, model = batches(4), net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cpu", init_scale=64.0)
    for x, y in data:
        with torch.autocast("cpu", torch.float16):
            output = model(x)
            loss = CE(output, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert output.dtype is torch.float16
    assert trained(data, grad_clip=CLIP, configs=[AMPConfig(init_scale=64.0)], **option) == weights(model)


def test_bf16_runs_model_and_loss_under_autocast() -> None:
    seen = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
        return CE(output, target)

    micro_step(stoke(loss, precision="bf16"), *batches(1)[0])
    assert seen == [(torch.bfloat16, True)]


# B39: a step that the scaler skipped was counted
def test_a_step_that_overflowed_is_not_counted_and_moves_no_scheduler() -> None:
    schedule = StokeScheduler(scheduler=torch.optim.lr_scheduler.StepLR, scheduler_kwargs={"step_size": 1, "gamma": 0.5})
    it = stoke(fp16="amp", configs=[AMPConfig(init_scale=2.0**40)], scheduler=schedule)
    before = weights(it.model_access)
    x, y = batches(1)[0]
    it.backward(it.loss(it.model(x), y))
    step = it.step()
    assert step is not None
    assert step.skipped
    assert (it.optimizer_steps, it.backward_steps, it.optimizer.param_groups[0]["lr"]) == (0, 1, 0.1)
    assert weights(it.model_access) == before
    assert it.scaler is not None
    assert it.scaler.get_scale() == 2.0**39
    assert it.fp16_state_dict == it.scaler.state_dict()


# B40: two backwards in one step, and the optimizer never stepped again
def test_several_backwards_before_a_step_add_up() -> None:
    it, (x, y) = stoke(), batches(1)[0]
    for _ in range(3):
        it.backward(it.loss(it.model(x), y))
        it.backward(it.loss(it.model(x), y))
        it.step()
    assert (it.optimizer_steps, it.backward_steps) == (3, 6)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        CE(model(x), y).backward()
        CE(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert weights(it.model_access) == weights(model)


# B17, B18: each loss had a backward of its own, of which the third found the graph freed
@pytest.mark.parametrize("kind", [list, tuple])
def test_several_losses_run_back_together_as_their_sum(kind: Any) -> None:
    losses = kind([CE, lambda o, t: o.square().mean(), lambda o, t: o.abs().mean()])
    it, model, data = stoke(losses, grad_accum_steps=2), net(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(data):
        values = it.loss(it.model(x), y)
        assert [type(values), len(values)] == [list, 3]
        it.backward(values)
        it.step()
        output = model(x)
        (CE(output, y) / 2 + output.square().mean() / 2 + output.abs().mean() / 2).backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert weights(it.model_access) == weights(model)
    assert it.loss_access == list(losses)
    assert (it.backward_steps, it.optimizer_steps) == (4, 2)


@pytest.mark.parametrize("wrong", [None, 3.0, [], [torch.ones(2)], (3.0,)], ids=str)
def test_what_is_no_loss_cannot_run_back(wrong: Any) -> None:
    with pytest.raises(SessionError, match="a loss is one number in a tensor"):
        stoke().backward(wrong)


def test_the_counts_are_told() -> None:
    it, (x, y) = stoke(grad_accum_steps=2), batches(1)[0]
    seen = []
    for _ in range(3):
        it.backward(it.loss(it.model(x), y))
        seen.append((it.grad_accum_counter, it.backward_steps, it.optimizer_steps))
        it.step()
        seen.append((it.grad_accum_counter, it.backward_steps, it.optimizer_steps))
    assert seen == [(1, 1, 0), (1, 1, 0), (2, 2, 0), (0, 2, 1), (1, 3, 1), (1, 3, 1)]


def test_step_returns_the_norm_before_clipping_and_nothing_within_a_window() -> None:
    it, model, (x, y) = stoke(grad_accum_steps=2, grad_clip=CLIP), net(), batches(1)[0]
    it.backward(it.loss(it.model(x), y))
    assert it.step() is None
    it.backward(it.loss(it.model(x), y))
    done = it.step()
    CE(model(x), y).backward()
    assert done is not None
    assert done.norm is not None
    expected = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(done.norm, expected)


def test_reset_drops_gradients_and_the_window_but_neither_totals_nor_the_average(
    capsys: pytest.CaptureFixture[str],
) -> None:
    it, (x, y) = stoke(grad_accum_steps=3), batches(1)[0]
    micro_step(it, x, y)
    it.backward(it.loss(it.model(x), y))
    average = it.ema_loss
    for verb in (it.reset, it.zero_grads):
        verb()
        assert all(p.grad is None for p in it.model_access.parameters())
        assert (it.grad_accum_counter, it.backward_steps, it.ema_loss) == (0, 2, average)
    for _ in range(3):
        assert it.optimizer_steps == 0
        loss = it.loss(it.model(x), y)
        it.print_mean_accumulated_synced_loss()
        it.backward(loss)
        it.step()
    assert weights(it.model_access) == by_hand([(x, y)] * 3, accumulate=3)
    assert capsys.readouterr().out == f"Stoke -- Mean Accumulated & Synced Loss: {average:.3f}\n"  # of this window alone


def test_reset_tracking_clears_every_count_and_loss_and_no_gradient() -> None:
    it, (x, y) = stoke(grad_accum_steps=2), batches(1)[0]
    for _ in range(3):
        micro_step(it, x, y)
    it.backward(it.loss(it.model(x), y))
    it.reset_tracking()
    assert (it.grad_accum_counter, it.backward_steps, it.optimizer_steps, it.step_loss, it.ema_loss) == (0, 0, 0, 0.0, 0.0)
    assert all(p.grad is not None for p in it.model_access.parameters())


def test_flush_steps_with_what_the_window_has() -> None:
    it, data = stoke(grad_accum_steps=4), batches(2)
    assert it.flush() is None
    for x, y in data:
        micro_step(it, x, y)
    assert it.flush() is not None
    assert (it.optimizer_steps, it.grad_accum_counter) == (1, 0)
    expected = by_hand(data, accumulate=2)
    for mine, theirs in zip(weights(it.model_access), expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-7)


def test_a_loader_of_its_own_ends_the_last_window_of_an_epoch_early() -> None:
    it = stoke(grad_accum_steps=4, batch_size=2)
    for x, y in it.DataLoader(samples(10)):
        micro_step(it, x, y)
    assert it.optimizer_steps == 2
    data = [(torch.stack([x for x, _ in pair]), torch.tensor([y for _, y in pair])) for pair in _pairs(samples(10))]
    hand = by_hand_windows([data[:4], data[4:]])
    assert weights(it.model_access) == hand


def _pairs(data: list[Any]) -> list[list[Any]]:
    return [data[i : i + 2] for i in range(0, len(data), 2)]


def by_hand_windows(windows: list[list[tuple[Tensor, Tensor]]]) -> list[list[float]]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for window in windows:
        for x, y in window:
            (CE(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_evaluate_is_eval_mode_without_gradients_and_puts_every_mode_back() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    it = stoke(model=model)
    model[1].eval()  # frozen, and to stay so
    x, y = batches(1)[0]
    with it.evaluate():
        assert not any(module.training for module in model.modules())
        assert not it.loss(it.model(x), y).requires_grad
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert it.loss(it.model(x), y).requires_grad
    with pytest.raises(KeyError), it.evaluate():
        raise KeyError
    assert model.training


def test_two_stokes_train_side_by_side() -> None:
    data = batches(4)
    one, two = stoke(), stoke(grad_accum_steps=2)
    for x, y in data:
        micro_step(one, x, y)
        micro_step(two, x, y)
    assert weights(one.model_access) == by_hand(data)
    assert weights(two.model_access) == by_hand(data, accumulate=2)
