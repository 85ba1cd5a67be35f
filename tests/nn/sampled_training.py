"""Training on samples of classes, and the update rules of SGD and Adam for steps that reach some rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from restoke.distributed.collectives import all_gather
from restoke.nn import ArcFace, PartialFC
from restoke.nn.functional.cross_entropy import parallel_cross_entropy
from restoke.nn.partial_fc import follow
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
