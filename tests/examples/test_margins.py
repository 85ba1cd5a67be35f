"""Margin training over many small classes learns, alike in every run; the templates of a parallel layer and loss are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from examples.templates.parallel_layer import TemplateLinear
from examples.templates.parallel_loss import template_loss
from restoke import OptimizerSpec, Session
from restoke.distributed import gather_rows, group_of
from restoke.nn import shard_of, shards_of
from restoke.testing import ranks as pool
from restoke.testing.training import trained
from tests.examples.running import EXAMPLES, run
from tests.nn.joined import run as joined

F64 = torch.float64


def test_margin_training_learns_in_two_processes_and_again_the_same(tmp_path: Path) -> None:
    words = ("--processes", 2, "--device", "cpu", EXAMPLES / "margin_training.py", "--classes", 60, "--epochs", 5)
    first, again = (run(tmp_path, "-m", "restoke.cli", "launch", *words, "--batch-size", 12) for _ in range(2))
    loss, right = first.numbers("loss"), first.numbers("first guess")
    assert loss[-1] < loss[0] / 2
    assert right[-1] > 30  # of a hundred; a guess is right in less than two
    assert first.numbers("among five")[-1] > right[-1]
    assert "ranks=2" in first.text
    assert again.text == first.text


def test_more_classes_than_there_are_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="files of 16 passages or more"):
        run(tmp_path, EXAMPLES / "margin_training.py", "--classes", 100_000)


def errors(classes: int) -> list[float]:
    generator = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, 4, generator=generator, dtype=F64, requires_grad=True)
    x, y = torch.randn(7, 4, generator=generator, dtype=F64), torch.randint(classes, (7,), generator=generator)
    layer = TemplateLinear(4, classes).double()
    with torch.no_grad():
        layer.weight.copy_(layer.shard.of(weight))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = layer(ours)
    assert shard_of(out) is None or shard_of(out).size == classes  # type: ignore[union-attr]
    assert list(shards_of(layer)) == (["weight"] if layer.shard.group.size > 1 else [])
    loss, wanted = template_loss(out, y), F.cross_entropy(F.linear(theirs, weight), y)
    loss.backward()
    wanted.backward()
    pairs: list[Any] = [(loss, wanted), (ours.grad, theirs.grad), (layer.weight.grad, layer.shard.of(weight.grad))]  # type: ignore[arg-type]
    return [(a - b).detach().abs().max().item() if a.numel() else 0.0 for a, b in pairs]


@pytest.mark.parametrize(("n", "classes"), [(1, 9), (2, 9), (3, 10), (4, 3)])
def test_the_templates_equal_torch_on_the_whole(n: int, classes: int) -> None:
    for found in joined(n, errors, classes):
        assert max(found) < 1e-12


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.group = nn.Linear(5, 4), TemplateLinear(4, 9), group_of()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(gather_rows(torch.tanh(self.trunk(x)), self.group))  # type: ignore[no-any-return]


def in_session(strategy: str) -> dict[str, Any]:
    session = Session(strategy=strategy, device="cpu", seed=3, clip=0.5)
    torch.manual_seed(3)
    session.prepare(Model(), OptimizerSpec(torch.optim.SGD, {"lr": 0.3, "momentum": 0.9}))
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 5, generator=generator), torch.randint(9, (8,), generator=generator)
        own = x.chunk(session.world.size)[session.world.rank]
        session.backward(template_loss(session.forward(own), y))
        session.step()
    return trained(session)


def test_the_templates_train_under_ddp_as_in_one_process() -> None:
    wanted = pool.run(1, in_session, "single")[0]
    for found in pool.run(2, in_session, "ddp"):
        for name, value in wanted.items():
            assert abs(found[name] - value).max() < 1e-6
