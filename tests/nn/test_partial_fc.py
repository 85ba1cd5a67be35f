"""Partial FC: steps see a sample of the classes with every positive in it; the rest stays as it is, bit by bit."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke.distributed import group_of
from restoke.distributed.collectives import all_gather
from restoke.errors import CheckpointError, SpecError
from restoke.nn import ArcFace, CosFace, ParallelMarginLinear, shard_of
from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from restoke.nn.partial_fc import PartialFC, follow
from tests.nn.joined import run
from tests.nn.margin_reference import F64, arcface, logits

CLASSES, FEATURES, ROWS, STEPS, SCALE, RATE = 41, 5, 6, 7, 8.0, 0.3
SGD: dict[str, Any] = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.1}
ADAMW: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
KINDS = [("SGD", SGD), ("SGD", {**SGD, "nesterov": True}), ("AdamW", ADAMW), ("Adam", {**ADAMW, "amsgrad": True})]
every_kind = pytest.mark.parametrize(("kind", "options"), KINDS, ids=lambda each: each if isinstance(each, str) else "")


def batch(step: int, rows: int = ROWS, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    target = torch.randint(classes, (rows,), generator=generator)
    target[1] = target[0]
    return torch.randn(rows, FEATURES, generator=generator, dtype=F64), target


def built(rate: float = RATE, **options: Any) -> PartialFC:
    torch.manual_seed(3)
    options = {"margin": ArcFace(), "scale": SCALE, "seed": 11, "dtype": F64, **options}
    return PartialFC(FEATURES, CLASSES, sample_rate=rate, **options)


def optimizer_of(head: nn.Module, kind: str, options: dict[str, Any]) -> Any:
    optimizer = getattr(torch.optim, kind)(head.parameters(), **options)
    follow(head, optimizer)
    return optimizer


def train(head: nn.Module, optimizer: Any, first: int = 0, last: int = STEPS, micro: int = 1) -> list[dict[str, Any]]:
    steps = []
    for number in range(first, last):
        for part in range(micro):
            x, y = batch(number * micro + part)
            x.requires_grad_()
            out, numbers = head(x, y)
            loss = parallel_cross_entropy(out, numbers) / micro
            loss.backward()
        steps.append({"loss": loss.item() * micro, "sample": sampled(head), "grad": x.grad})
        optimizer.step()
        optimizer.zero_grad()
    return steps


def sampled(head: Any) -> Tensor:
    """The classes in the sample, of all ranks."""
    sample = head._progress.sample
    if sample is None:
        return torch.arange(CLASSES)
    return all_gather(sample.index + head.shard.start, 0, sample.shard.lengths, head.shard.group)


def whole(head: Any) -> Tensor:
    return all_gather(head.weight.detach().clone(), 0, head.shard.lengths, head.shard.group)


class Lazy:
    """The update rules of SGD and Adam, in steps that reach some rows: the others, and what is gathered for them, wait."""

    def __init__(self, weight: Tensor, kind: str, options: dict[str, Any]) -> None:
        self.weight, self.kind, self.options = weight, kind, options
        self.first, self.second, self.most = (torch.zeros_like(weight) for _ in range(3))
        self.step_count = 0

    def step(self, grad: Tensor, rows: Tensor) -> None:
        w, o = self.weight[rows], self.options
        if self.kind == "SGD":
            g = grad[rows] + o["weight_decay"] * w
            self.first[rows] = o["momentum"] * self.first[rows] + g
            move = g + o["momentum"] * self.first[rows] if o.get("nesterov") else self.first[rows]
            self.weight[rows] = w - o["lr"] * move
            return
        self.step_count += 1
        if self.kind == "AdamW":
            w, g = w * (1 - o["lr"] * o["weight_decay"]), grad[rows]
        else:
            g = grad[rows] + o["weight_decay"] * w
        self.first[rows] = 0.9 * self.first[rows] + 0.1 * g
        self.second[rows] = 0.999 * self.second[rows] + 0.001 * g * g
        self.most[rows] = torch.maximum(self.most[rows], self.second[rows])
        second = self.most[rows] if o.get("amsgrad") else self.second[rows]
        first = self.first[rows] / (1 - 0.9**self.step_count)
        self.weight[rows] = w - o["lr"] * first / ((second / (1 - 0.999**self.step_count)).sqrt() + 1e-8)


def reference(weight: Tensor, samples: list[Tensor], kind: str, options: dict[str, Any]) -> tuple[Tensor, list[float]]:
    lazy, losses = Lazy(weight.clone(), kind, options), []
    for number, rows in enumerate(samples):
        x, y = batch(number)
        leaf = lazy.weight.clone().requires_grad_()
        loss = F.cross_entropy(logits(x, leaf, y, arcface(0.5), SCALE)[:, rows], torch.searchsorted(rows, y))
        loss.backward()
        losses.append(loss.item())
        lazy.step(leaf.grad, rows)  # type: ignore[arg-type]
    return lazy.weight, losses


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


def windows(micro: int) -> list[Any]:
    head = built(0.2)
    optimizer = optimizer_of(head, "SGD", SGD)
    before = whole(head)
    steps = train(head, optimizer, micro=micro)
    return [before, whole(head), [step["sample"] for step in steps]]


@pytest.mark.parametrize("n", [1, 2])
def test_a_window_of_micro_batches_is_one_step_on_a_sample_that_grows(n: int) -> None:
    for before, after, samples in run(n, windows, 3):
        lazy = Lazy(before.clone(), "SGD", SGD)
        for number, rows in enumerate(samples):
            targets = torch.cat([batch(number * 3 + part)[1] for part in range(3)])
            assert set(targets.tolist()) <= set(rows.tolist())
            assert len(rows) < CLASSES
        assert torch.equal((before != after).any(1), torch.isin(torch.arange(CLASSES), torch.cat(samples)))
        assert lazy.weight.shape == after.shape


def test_a_gradient_reaches_the_sample_that_has_grown_since_its_forward() -> None:
    head = built(0.2)
    optimizer_of(head, "SGD", SGD)
    parts = []
    for number in range(2):  # both forwards before any backward
        x, y = batch(number)
        out, numbers = head(x, y)
        parts.append((x, y, head._progress.sample.index, parallel_cross_entropy(out, numbers)))  # type: ignore[union-attr]
    leaf = head.weight.detach().clone().requires_grad_()
    for x, y, index, loss in parts:
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
