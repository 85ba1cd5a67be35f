"""Twenty steps of a head that ranks share, against DDP with the whole head on each: every reduction, unequal batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke import OptimizerSpec, Session
from restoke.distributed import gather_rows, group_of
from restoke.distributed.collectives import exchange_lengths
from restoke.nn import ParallelCrossEntropyLoss, ParallelLinear
from restoke.testing.training import trained
from tests.nn.joined import run
from tests.nn.shared_model import every_row, possible

STEPS, CLASSES, FEATURES, IGNORED = 20, 10, 6, -100
OPTIONS: dict[str, Any] = {"label_smoothing": 0.1, "ignore_index": IGNORED}
LR = {"mean": 0.1, "sum": 0.01, "none": 0.1}
CASES = [(2, None, 1), (4, None, 1), (4, 2, 1), (4, 2, 2)]  # ranks, ranks in a group, ranks with one batch


class Model(nn.Module):
    """A trunk, and a head that is shared, or not."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh())
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))  # type: ignore[no-any-return]


class Shared(nn.Module):
    def __init__(self, group: Any, gathered: bool) -> None:
        super().__init__()
        self.group, self.gathered = group, gathered
        self.linear = ParallelLinear(5, CLASSES, dim=1, group=group)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(gather_rows(x, self.group) if self.gathered else x)  # type: ignore[no-any-return]


def whole_head() -> nn.Linear:
    torch.manual_seed(9)
    return nn.Linear(5, CLASSES)


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Of another length for each rank; some rows are ignored, and one rank's half of them."""
    generator = torch.Generator().manual_seed(100 * step + index)
    rows = 3 + 2 * index
    x, y = torch.randn(rows, FEATURES, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)
    y[:: 2 if index == 1 else 5] = IGNORED
    return x, y


def local(loss: Tensor) -> Tensor:
    """What a script makes of losses that were not reduced."""
    return loss.sum() / 4 if loss.ndim else loss


def by_ddp(reduction: str, together: int, clip: float | None) -> dict[str, Any]:
    model = Model(whole_head())
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR[reduction], momentum=0.9)
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank() // together)
        local(F.cross_entropy(ddp(x), y, reduction=reduction, **OPTIONS)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return {name.replace("head.", "head.linear."): value.numpy() for name, value in model.state_dict().items()}


def by_session(strategy: str, reduction: str, size: int | None, together: int, clip: float | None) -> dict[str, Any]:
    """Each rank hands in the loss of its own rows, as under DDP."""
    session = Session(strategy=strategy, device="cpu", clip=clip, tensor=together)
    group = group_of(size)
    model = Model(Shared(group, gathered=together == 1))
    whole = whole_head()
    with torch.no_grad():
        for name, p in model.head.linear.named_parameters():  # type: ignore[union-attr]
            p.copy_(model.head.linear.shards[name].of(dict(whole.named_parameters())[name]))  # type: ignore[union-attr, index]
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": LR[reduction], "momentum": 0.9}))
    criterion = ParallelCrossEntropyLoss(reduction=reduction, **OPTIONS)
    for step in range(STEPS):
        x, y = batch(step, session.world.data_rank)
        rows = exchange_lengths(len(x), x.device, group) if together == 1 else None
        targets = gather_rows(y, group, rows) if together == 1 else y
        session.backward(local(criterion(session.forward(x), targets, rows=rows)))
        session.step()
    return trained(session)


def both(strategy: str, size: int | None, together: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [
        (f"{reduction}, clip {clip}", by_ddp(reduction, together, clip), by_session(strategy, reduction, size, together, clip))
        for reduction in LR
        for clip in (None, 0.5)
    ]


@every_row
@pytest.mark.parametrize(("n", "size", "together"), CASES)
def test_training_equals_ddp(strategy: str, n: int, size: int | None, together: int) -> None:
    if not possible(strategy, n, tensor=together):
        pytest.skip(f"not in {n} processes")
    for case, wanted, found in run(n, both, strategy, size, together)[0]:
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{case}: {name}")


def of_all_rows(reduction: str) -> list[Any]:
    """All ranks hand in one loss over all rows, alike: one process's on the whole batch."""
    group = group_of()
    torch.manual_seed(2)
    trunk, whole = nn.Linear(FEATURES, 5).double(), nn.Linear(5, CLASSES).double()
    head = ParallelLinear(5, CLASSES, dim=1).double()
    with torch.no_grad():
        for name, p in head.named_parameters():
            p.copy_(head.shards[name].of(dict(whole.named_parameters())[name]))  # type: ignore[union-attr]
    pairs = [batch(0, index) for index in range(group.size)]
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    loss = F.cross_entropy(whole(trunk(x.double())), y, reduction=reduction, **OPTIONS)
    local(loss).backward()
    wanted = [p.grad for p in (*trunk.parameters(), *whole.parameters())]
    trunk.zero_grad()
    own_x, own_y = pairs[group.rank]
    criterion = ParallelCrossEntropyLoss(reduction=reduction, **OPTIONS)
    shared = criterion(head(gather_rows(trunk(own_x.double()), group)), gather_rows(own_y, group))
    local(shared).backward()
    for p in trunk.parameters():
        dist.all_reduce(p.grad)
        p.grad /= group.size  # as data parallelism does
    grads = [p.grad for p in trunk.parameters()] + [head.weight.grad, head.bias.grad]  # type: ignore[union-attr]
    parts = [*wanted[:2], head.shards["weight"].of(wanted[2]), head.shards["bias"].of(wanted[3])]  # type: ignore[union-attr, arg-type]
    return [(shared - loss).abs().max().item(), *((a - b).abs().max().item() for a, b in zip(grads, parts, strict=True))]  # type: ignore[operator]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_loss_over_all_rows_has_its_own_gradient(reduction: str, n: int) -> None:
    for differences in run(n, of_all_rows, reduction):
        assert max(differences) < 1e-14
