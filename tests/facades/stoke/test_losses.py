"""Losses are divided for the backward only, followed on the device, and an evaluation's are not averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from restoke import Stoke
from restoke.errors import SessionError
from tests.facades.stoke.samples import CE, SGD, batches, micro_step, net, stoke


def given(values: Tensor, target: Tensor | None = None) -> Tensor:
    """A loss that is what the model gave."""
    return values.mean()


class Echo(nn.Module):
    """Returns its input, so that a test chooses the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def echo(loss: Any = given, **options: Any) -> Stoke:
    still = {"optimizer": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.0}}
    return Stoke(Echo(), still, loss, 1, verbose=False, **options)


def call(it: Stoke, value: float) -> Any:
    return it.loss(it.model(torch.tensor(value)))


def average(values: list[float], weight: float) -> float:
    """The definition: the first value stands for itself, each further one weighs `weight`."""
    ema = values[0]
    for value in values[1:]:
        ema = weight * value + (1 - weight) * ema
    return ema


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0])
def test_the_moving_average_begins_with_the_first_value(count: int, weight: float) -> None:
    it = echo(ema_weight=weight)
    values = [float(i % 7) - 2.5 for i in range(count)]
    for value in values:
        call(it, value)
    assert it.step_loss == values[-1]
    assert it.ema_loss == pytest.approx(average(values, weight), abs=1e-12)
    it.reset_ema()
    assert it.ema_loss == 0.0
    call(it, 5.0)
    assert (it.step_loss, it.ema_loss) == (5.0, 5.0)
    assert call(it, -1.0) == -1.0
    assert it.ema_loss == pytest.approx(average([5.0, -1.0], weight))


def test_reading_changes_nothing() -> None:
    read, unread = echo(), echo()
    for i in range(150):
        call(read, float(i))
        call(unread, float(i))
        assert read.step_loss == i
        assert isinstance(read.ema_loss, float)
    assert read.ema_loss == unread.ema_loss


def test_a_loss_is_returned_divided_and_told_undivided() -> None:
    it, (x, y) = stoke(grad_accum_steps=4), batches(1)[0]
    whole = CE(net()(x), y)
    share = it.loss(it.model(x), y)
    assert share.item() == (whole / 4).item()
    assert it.step_loss == it.ema_loss == whole.item()


# B41: an evaluation changed the average and the accumulated loss
@pytest.mark.parametrize("by_context", [True, False])
def test_an_evaluations_losses_are_neither_divided_nor_averaged(by_context: bool, capsys: pytest.CaptureFixture[str]) -> None:
    it = echo(grad_accum_steps=2)
    it.backward(call(it, 3.0))
    it.step()
    if by_context:
        with it.evaluate():
            assert call(it, 100.0) == 100.0
    else:
        it.model_access.eval()
        assert call(it, 100.0) == 100.0
        it.model_access.train()
    assert (it.step_loss, it.ema_loss) == (100.0, 3.0)
    assert call(it, 5.0) == 2.5
    assert it.ema_loss == pytest.approx(0.1 * 5 + 0.9 * 3)
    it.print_mean_accumulated_synced_loss()
    assert capsys.readouterr().out == "Stoke -- Mean Accumulated & Synced Loss: 4.000\n"


def test_several_losses_are_followed_each_by_itself() -> None:
    it = echo([given, lambda value: value * 10], grad_accum_steps=2)
    assert (it.step_loss, it.ema_loss) == ([0.0, 0.0], [0.0, 0.0])
    assert [value.item() for value in call(it, 1.0)] == [0.5, 5.0]
    call(it, 2.0)
    assert it.step_loss == [2.0, 20.0]
    assert it.ema_loss == pytest.approx([1.1, 11.0])
    assert [float(value) for value in it.detach_and_sync_loss(call(it, 4.0))] == [2.0, 20.0]


def test_a_loss_of_one_function_in_a_list_stays_a_list() -> None:
    it = echo([given])
    assert [value.item() for value in call(it, 2.0)] == [2.0]
    assert (it.step_loss, it.ema_loss, it.loss_access) == ([2.0], [2.0], [given])
    assert echo().loss_access is given


def test_a_loss_may_have_one_element_in_any_shape_and_any_dtype() -> None:
    it = echo(lambda value: value.reshape(1, 1).to(torch.bfloat16))
    it.backward(call(it, 2.0))
    assert it.step_loss == 2.0
    it = echo([given, lambda value: value.double()])
    it.backward(call(it, 3.0))
    assert it.step_loss == [3.0, 3.0]


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (lambda value: (value, value), "a tuple"),
        (lambda value: {"loss": value}, "a dict"),
        (lambda value: 3.0, "a float"),
        (lambda value: value.repeat(2), r"a tensor of shape \[2\]"),
    ],
)
def test_a_loss_that_is_no_number_in_a_tensor_is_refused(wrong: Any, got: str) -> None:
    for it in (echo(wrong), echo([given, wrong])):
        with pytest.raises(SessionError, match=f"loss='{got}': a loss is one number in a tensor. Instead: reduce it"):
            call(it, 1.0)
        assert it.ema_loss == (0.0 if it.loss_access is wrong else [0.0, 0.0])


def test_a_loss_is_called_with_whatever_it_is_given() -> None:
    seen: list[Any] = []
    it = echo([lambda *args, **kwargs: seen.append((args, kwargs)) or args[0].mean()] * 2)
    it.loss(torch.ones(3), "b", weight=2)
    assert [kwargs for _, kwargs in seen] == [{"weight": 2}] * 2
    assert all(args[1:] == ("b",) for args, _ in seen)


def test_a_loss_with_tensors_of_its_own_comes_to_the_device() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    it, (x, y) = Stoke(net(), SGD, weighted, 8, verbose=False), batches(1)[0]
    micro_step(it, x, y)
    assert it.loss_access is weighted
    assert weighted.weight is not None
    assert weighted.weight.device == it.device


# B42: an evaluation's loss, which nobody had divided, was multiplied all the same
def test_a_printed_loss_is_multiplied_back_only_if_it_was_divided(capsys: pytest.CaptureFixture[str]) -> None:
    it = echo(grad_accum_steps=4)
    trained = call(it, 6.0)
    with it.evaluate():
        evaluated = call(it, 8.0)
        it.print_synced_loss(evaluated)
        it.print_synced_loss(trained)  # known by itself, whatever was called since
        it.print_synced_loss(evaluated + 1)  # made from the last call's
    it.print_synced_loss(call(it, 2.0) * 1)
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == ["8.000", "6.000", "9.000", "2.000"]


def test_a_printed_loss_of_a_short_window_is_multiplied_by_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    it = echo(grad_accum_steps=4)
    data = [(torch.tensor(float(i)), torch.tensor(0.0)) for i in range(6)]
    for x, _ in it.DataLoader(data):
        loss = it.loss(it.model(x))
        it.print_synced_loss(loss, prepend_msg="L")
        it.print_mean_accumulated_synced_loss(prepend_msg="M")
        it.backward(loss)
        it.step()
    told = capsys.readouterr().out.replace("Stoke -- ", "").splitlines()
    assert [line for line in told if line[0] == "L"] == [f"L: {i}.000" for i in range(6)]
    assert [line for line in told if line[0] == "M"] == ["M: 1.500", "M: 4.500"]


# B43: several losses ignored the message and the format
def test_the_accumulated_loss_is_told_where_a_window_ends_and_where_the_call_says_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    it = echo([given, lambda value: value * 10], grad_accum_steps=2)
    for value in (1.0, 2.0):
        loss = call(it, value)
        it.print_mean_accumulated_synced_loss("before", pre_backwards=True)
        it.print_mean_accumulated_synced_loss("not yet", pre_backwards=False)
        it.backward(loss)
        it.print_mean_accumulated_synced_loss("too late", pre_backwards=True)
        it.print_mean_accumulated_synced_loss("after", pre_backwards=False, single_line=True)
        it.step()
    assert capsys.readouterr().out == "".join(
        f"Stoke -- {line}\n" for line in ("before 0: 1.500", "before 1: 15.000", "after 0: 1.500, after 1: 15.000")
    )


def test_a_loss_keeps_no_graph_alive() -> None:
    it = echo(grad_accum_steps=2)
    call(it, 1.0)
    assert not it._losses.track.last.requires_grad
    assert not it._losses.track.ema.requires_grad
