"""Partial FC between two steps: windows of micro-batches, skipped steps, copies, evaluation, and what it refuses."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke.distributed import group_of
from restoke.errors import CheckpointError, SpecError
from restoke.nn import CosFace, PartialFC
from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from tests.nn.joined import run
from tests.nn.margin_reference import arcface, logits
from tests.nn.sampled_training import (
    CLASSES,
    RATE,
    SCALE,
    SGD,
    Lazy,
    batch,
    built,
    optimizer_of,
    sampled,
    train,
    whole,
)


def windows(micro: int) -> list[Any]:
    head = built(0.2)
    optimizer = optimizer_of(head, "SGD", SGD)
    before = whole(head)
    steps = train(head, optimizer, micro=micro)
    return [before, whole(head), [step["sample"] for step in steps]]


@pytest.mark.parametrize("n", [1, 2])
def test_a_window_of_micro_batches_is_one_step_on_a_sample_that_grows(n: int) -> None:
    for before, after, samples in run(n, windows, 3):
        for number, rows in enumerate(samples):
            targets = torch.cat([batch(number * 3 + part)[1] for part in range(3)])
            assert set(targets.tolist()) <= set(rows.tolist())
            assert len(rows) < CLASSES
        assert torch.equal((before != after).any(1), torch.isin(torch.arange(CLASSES), torch.cat(samples)))


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_gradient_reaches_the_sample_that_has_grown_since_its_forward_or_its_backward(in_turn: bool) -> None:
    head = built(0.2)
    optimizer_of(head, "SGD", SGD)
    parts = []
    for number in range(2):
        x, y = batch(number)
        out, numbers = head(x, y)
        loss = parallel_cross_entropy(out, numbers)
        parts.append((x, y, head._progress.sample.index, loss))  # type: ignore[union-attr]
        if in_turn:
            loss.backward()
    leaf = head.weight.detach().clone().requires_grad_()
    for x, y, index, loss in parts:
        if not in_turn:
            loss.backward()
        F.cross_entropy(logits(x, leaf, y, arcface(0.5), SCALE)[:, index], torch.searchsorted(index, y)).backward()
    found = torch.zeros_like(leaf)
    found[head._progress.sample.index] = head.sampled.grad  # type: ignore[union-attr]
    assert (found - leaf.grad).abs().max() < 1e-12  # type: ignore[operator]


def test_a_second_backward_after_another_draw_is_refused() -> None:
    head = built(0.2)
    optimizer = optimizer_of(head, "SGD", SGD)
    out, numbers = head(*batch(0))
    loss = parallel_cross_entropy(out, numbers)
    loss.backward(retain_graph=True)
    optimizer.zero_grad()
    head(*batch(1))
    with pytest.raises(SpecError, match="another sample of classes has been drawn"):
        loss.backward()


def corrected() -> float:
    """The mean over many samples of sum(exp) over all classes, estimated from 30 % of them."""
    head = built(RATE, correction=True, margin=CosFace(0.0), scale=1.0)
    with torch.no_grad():
        head.weight.mul_(100)
    optimizer_of(head, "SGD", SGD)
    x, y = batch(0)
    sums = []
    for _ in range(400):
        out, _ = head(x, y)
        total = torch.as_tensor(out.detach().exp()).as_subclass(Tensor).sum(1)
        torch.distributed.all_reduce(total)
        sums.append(total)
        del out
    wanted = (F.normalize(x) @ F.normalize(whole(head)).t()).exp().sum(1)
    return float((torch.stack(sums).mean(0) / wanted - 1).abs().max())


def test_the_correction_makes_the_sum_over_the_sample_that_over_all_classes() -> None:
    assert run(2, corrected)[0] < 0.02


def scaled_and_clipped() -> list[Any]:
    """An overflow skips the step: nothing moves, and the next forward draws anew. Clipping sees the sampled rows' gradient."""
    head = built()
    optimizer = optimizer_of(head, "SGD", SGD)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before, samples, norms = whole(head), [], []
    for number in range(3):
        out, numbers = head(*batch(number))
        scaler.scale(parallel_cross_entropy(out, numbers)).backward()
        if number == 1:
            head.sampled.grad[0, 0] = math.inf  # type: ignore[index]
        samples.append(sampled(head))
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(head.parameters(), 1e-3))
        moved = whole(head)
        scaler.step(optimizer)
        scaler.update()
        if number == 1:
            assert torch.equal(moved, whole(head))
        optimizer.zero_grad(set_to_none=number != 2)
    changed = (before != whole(head)).any(1).nonzero().squeeze(1)
    return [changed, torch.cat([samples[0], samples[2]]).unique(), [bool(norm > 0) for norm in norms], scaler.get_scale()]


def test_loss_scaling_and_clipping_work_on_the_sampled_rows() -> None:
    changed, wanted, norms, scale = run(1, scaled_and_clipped)[0]
    assert torch.equal(changed, wanted)
    assert norms == [True, True, True]
    assert scale == 2.0


def mesh() -> list[Any]:
    """Two groups with a batch each, whose copies of the class vectors are averaged as copies are."""
    group = group_of(2)
    head = built(group=group)
    optimizer = optimizer_of(head, "SGD", SGD)
    before, samples = whole(head), []
    for number in range(3):
        out, numbers = head(*batch(10 * number + group.peers.rank))  # type: ignore[union-attr]
        parallel_cross_entropy(out, numbers).backward()
        torch.distributed.all_reduce(head.sampled.grad, group=group.peers.handle)  # type: ignore[union-attr]
        head.sampled.grad /= 2
        samples.append(sampled(head))
        optimizer.step()
        optimizer.zero_grad()
    return [before, whole(head), samples]


def test_groups_that_hold_copies_sample_alike_and_step_alike() -> None:
    found = run(4, mesh)
    before, after, samples = found[0]
    lazy = Lazy(before.clone(), "SGD", SGD)
    for number, rows in enumerate(samples):
        leaf = lazy.weight.clone().requires_grad_()
        for peer in range(2):
            x, y = batch(10 * number + peer)
            out = logits(x, leaf, y, arcface(0.5), SCALE)[:, rows]
            (F.cross_entropy(out, torch.searchsorted(rows, y)) / 2).backward()
        lazy.step(leaf.grad, rows)  # type: ignore[arg-type]
    assert (after - lazy.weight).abs().max() < 1e-12
    for other in found[1:]:
        assert torch.equal(other[1], after)


def test_evaluation_sees_all_classes_and_draws_nothing() -> None:
    head = built()
    optimizer_of(head, "SGD", SGD)
    x, y = batch(0)
    wanted = logits(x, head.weight.detach(), y, arcface(0.5), SCALE)
    with torch.no_grad():
        out, numbers = head(x, y)
    assert torch.equal(numbers, y)
    assert (out - wanted).abs().max() < 1e-12
    out, _ = head.eval()(x.requires_grad_(), y)
    assert (out - wanted).abs().max() < 1e-12
    out.sum().backward()
    assert head.weight.grad is None
    assert head.draws == 0
    assert (head.logits(x) - logits(x, head.weight, None, arcface(0.5), SCALE)).abs().max() < 1e-12


def test_batches_may_be_smaller_and_rows_have_no_class() -> None:
    head = built()
    optimizer = optimizer_of(head, "SGD", SGD)
    for rows in (6, 2):
        x, y = batch(rows, rows)
        y[0] = -100
        kept = y.clone()
        out, numbers = head(x, y)
        parallel_cross_entropy(out, numbers).backward()
        assert torch.equal(y, kept)
        assert numbers[0] == -100
        optimizer.step()
        optimizer.zero_grad()


def test_frozen_features_train_the_head_alone() -> None:
    head = built()
    optimizer = optimizer_of(head, "SGD", SGD)
    before = head.weight.detach().clone()
    out, numbers = head(*batch(0))
    parallel_cross_entropy(out, numbers).backward()
    optimizer.step()
    assert not torch.equal(head.weight, before)


def test_a_copy_begins_anew_and_is_attached_by_itself() -> None:
    head = built()
    optimizer = optimizer_of(head, "SGD", SGD)
    train(head, optimizer, 0, 1)
    again = copy.deepcopy(head)
    with pytest.raises(SpecError, match=r"head\.attach"):
        again(*batch(1))
    own = optimizer_of(again, "SGD", SGD)
    train(again, own, 1, 2)
    assert not torch.equal(again.weight, head.weight)


def test_saving_within_a_window_is_refused() -> None:
    head = built()
    optimizer = optimizer_of(head, "SGD", SGD)
    out, numbers = head(*batch(0))
    parallel_cross_entropy(out, numbers).backward()
    with pytest.raises(CheckpointError, match="a window that has not ended"):
        head.state_dict()
    optimizer.step()
    assert set(head.state_dict()) == {"weight", "_extra_state"}


def refusals() -> list[str]:
    head, said = built(), []
    x, y = batch(0)
    lone = built()
    optimizer = torch.optim.SGD(lone.parameters(), lr=0.1)
    cases: list[Any] = [
        lambda: head(x, y),
        lambda: head.attach(torch.optim.SGD([head.sampled], lr=0.1)),
        lambda: [lone.attach(optimizer), lone(x, torch.tensor([0, 1, 2, 3, 4, CLASSES]))],
        lambda: lone(x, y[:3]),
        lambda: lone(x[:, :2], y),
        lambda: built(0.0),
        lambda: built(1.5),
        lambda: PartialFC(3, 9, group=group_of(1)),
    ]
    for case in cases:
        with pytest.raises(SpecError) as error:
            case()
        said.append(str(error.value))
    out, numbers = lone(x, y)
    parallel_cross_entropy(out, numbers).backward()
    with pytest.raises(SpecError) as error:
        optimizer.step(lambda: 0.0)
    return [*said, str(error.value)]


def test_what_does_not_fit_is_refused_alike_on_every_rank() -> None:
    first, second = run(2, refusals)
    assert first == second
    words = ("head.attach", "head.parameters()", "target=41", "6 rows", "5 elements", "0.0", "1.5", "share", "closure")
    for word, message in zip(words, first, strict=True):
        assert word in message
