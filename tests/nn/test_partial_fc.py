"""Partial FC: steps see a sample of the classes with every positive in it; the rest stays as it is, bit by bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from restoke.nn import ArcFace, ParallelMarginLinear, PartialFC, shard_of
from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from tests.nn.joined import run
from tests.nn.margin_reference import F64
from tests.nn.sampled_training import (
    ADAMW,
    CLASSES,
    FEATURES,
    RATE,
    SCALE,
    SGD,
    STEPS,
    batch,
    built,
    every_kind,
    optimizer_of,
    reference,
    sampled,
    train,
    whole,
)


def trained(kind: str, options: dict[str, Any]) -> Any:
    head = built()
    before = whole(head)
    steps = train(head, optimizer_of(head, kind, options))
    return before, whole(head), [step["sample"] for step in steps], [step["loss"] for step in steps]


@every_kind
@pytest.mark.parametrize("n", [1, 2, 3])
def test_steps_are_those_of_the_optimizer_on_the_sampled_rows(n: int, kind: str, options: dict[str, Any]) -> None:
    for before, after, samples, losses in run(n, trained, kind, options):
        wanted, their_losses = reference(before, samples, kind, options)
        assert losses == pytest.approx(their_losses, abs=1e-12)
        assert (after - wanted).abs().max() < 1e-12


def one_step(kind: str, options: dict[str, Any]) -> list[Tensor]:
    head = built()
    optimizer = optimizer_of(head, kind, options)
    train(head, optimizer)  # momentum of most classes is not zero
    before = whole(head)
    (step,) = train(head, optimizer, 50, 51)
    return [before, whole(head), step["sample"], batch(50)[1]]


@every_kind
@pytest.mark.parametrize("n", [1, 2])
def test_rows_outside_the_sample_keep_their_bits(n: int, kind: str, options: dict[str, Any]) -> None:
    for before, after, sample, target in run(n, one_step, kind, options):
        moved = (before != after).any(1).nonzero().squeeze(1)
        assert torch.equal(moved, sample)
        assert set(target.tolist()) <= set(sample.tolist())
        assert len(sample) == round(RATE * CLASSES)


def at_rate_one(kind: str, options: dict[str, Any], rate: float) -> list[Any]:
    full = ParallelMarginLinear(FEATURES, CLASSES, ArcFace(), SCALE, dtype=F64)
    head = built(rate)
    with torch.no_grad():
        full.weight.copy_(head.weight)
    theirs = getattr(torch.optim, kind)(full.parameters(), **options)
    steps = train(head, optimizer_of(head, kind, options))
    same = []
    for number, step in enumerate(steps):
        x, y = batch(number)
        x.requires_grad_()
        loss = parallel_cross_entropy(full(x, y), y)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        same.append(loss.item() == step["loss"] and torch.equal(x.grad, step["grad"]))  # type: ignore[arg-type]
    return [torch.equal(head.weight, full.weight), same]


@every_kind
@pytest.mark.parametrize("rate", [1, 0.9999])
def test_a_sample_of_all_classes_is_bit_equal_to_the_full_head(kind: str, options: dict[str, Any], rate: float) -> None:
    for n in (1, 2, 3):
        for found in run(n, at_rate_one, kind, options, rate):
            assert found == [True, [True] * STEPS]


def kept_state(kind: str, options: dict[str, Any]) -> list[Any]:
    head = built()
    optimizer = optimizer_of(head, kind, options)
    x, y = batch(0)
    out, numbers = head(x, y)
    parallel_cross_entropy(out, numbers).backward()
    optimizer.step()
    seen = [tuple(value.shape) for value in optimizer.state[head.weight].values() if isinstance(value, Tensor)]
    return [head.weight.grad is None, tuple(head.sampled.grad.shape), head.sampled in optimizer.state, seen]  # type: ignore[union-attr]


def test_gradients_are_of_the_sample_and_state_waits_under_the_weight() -> None:
    first, second = run(2, kept_state, "AdamW", ADAMW)
    assert first == [True, (6, FEATURES), False, [(), (21, FEATURES), (21, FEATURES)]]
    assert second == [True, (6, FEATURES), False, [(), (20, FEATURES), (20, FEATURES)]]


def test_kept_state_takes_no_page_of_classes_that_were_never_sampled() -> None:
    from restoke.nn.sampled_rows import _zeros

    before = _resident()
    state = _zeros(torch.Size((1 << 20, 64)), torch.float32)  # 256 MiB
    state[5] = 1
    assert state.shape == (1 << 20, 64)
    assert _resident() - before < 32 << 20
    assert state[4:7].sum() == 64


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def resumed(kind: str, options: dict[str, Any], stop: int) -> list[Any]:
    def fresh() -> Any:
        head = built(seed=99)
        return head, optimizer_of(head, kind, options)

    straight, optimizer = fresh()
    wanted = [step["sample"] for step in train(straight, optimizer)]
    first, optimizer = fresh()
    samples = [step["sample"] for step in train(first, optimizer, 0, stop)]
    file = io.BytesIO()
    torch.save([first.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    torch.manual_seed(77)
    second = PartialFC(FEATURES, CLASSES, ArcFace(), SCALE, RATE, dtype=F64)
    optimizer = optimizer_of(second, kind, options)
    model_state, optimizer_state = torch.load(file)
    second.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)
    samples += [step["sample"] for step in train(second, optimizer, stop)]
    return [all(map(torch.equal, samples, wanted)), torch.equal(second.weight, straight.weight), sorted(model_state)]


@every_kind
def test_a_resumed_run_draws_the_same_and_ends_bit_equal(kind: str, options: dict[str, Any]) -> None:
    for found in run(2, resumed, kind, options, 3):
        assert found == [True, True, ["_extra_state", "weight"]]


def drawn(seed: int | None) -> list[Tensor]:
    torch.manual_seed(torch.distributed.get_rank() + 1)
    head = PartialFC(FEATURES, CLASSES, sample_rate=RATE, seed=seed, dtype=F64)
    optimizer = optimizer_of(head, "SGD", SGD)
    return [step["sample"] for step in train(head, optimizer)]


def test_draws_follow_the_seed_and_differ_by_step_and_rank() -> None:
    first, again, other = (run(2, drawn, seed)[0] for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    assert len({tuple(each.tolist()) for each in first}) == STEPS
    counts = torch.bincount(torch.cat(first), minlength=CLASSES)
    assert (counts > 0).float().mean() > 0.8  # of classes drawn in seven steps at 0.3
    lower, upper = first[0][first[0] < 21], first[0][first[0] >= 21] - 21
    assert lower.tolist() != upper.tolist()


def crowded() -> list[Any]:
    head = built(0.05)  # two classes of 41
    optimizer = optimizer_of(head, "SGD", SGD)
    x = torch.randn(9, FEATURES, dtype=F64)
    y = torch.tensor([0, 1, 2, 3, 4, 40, 0, 1, 2])  # five on the first rank, one on the second
    kept = y.clone()
    out, numbers = head(x, y)
    parallel_cross_entropy(out, numbers).backward()
    found = sampled(head)
    optimizer.step()
    optimizer.zero_grad()
    train(head, optimizer, 0, 2)
    return [found.tolist(), numbers.tolist(), tuple(out.shape), shard_of(out).size, torch.equal(y, kept)]  # type: ignore[union-attr]


def test_more_positives_than_the_rate_makes_room_for_are_all_kept() -> None:
    first, second = run(2, crowded)
    found, numbers, shape, size, kept = first
    assert found[:5] == [0, 1, 2, 3, 4]
    assert found[-1] == 40
    assert (size, shape) == (9, (9, 5))
    assert second[2] == (9, 4)
    assert [found[number] for number in numbers] == [0, 1, 2, 3, 4, 40, 0, 1, 2]
    assert numbers == second[1]
    assert kept
