"""Parts on their way through what models are put into: DDP, autocast, recomputation, compilation, copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from restoke.distributed import gather, gather_rows, group_of
from restoke.nn import ParallelLinear, plain, register_ddp_parameters_to_ignore, shard_of
from tests.nn.joined import run


class Net(nn.Module):
    """A backbone of each rank's own rows, and a head by columns for all of them."""

    def __init__(self, rows: bool = True) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.backbone, self.unused = nn.Linear(3, 4), nn.Linear(2, 2)
        self.head = ParallelLinear(4, 5, dim=1)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x).tanh()
        return self.head(gather_rows(features, self.head.group) if self.rows else features)  # type: ignore[no-any-return]


def known(out: Tensor) -> tuple[int, int, type[Tensor]]:
    shard = shard_of(out)
    assert shard is not None
    return shard.size, shard.length, type(plain(out))


def ddp(options: dict[str, bool]) -> Any:
    model = Net()
    register_ddp_parameters_to_ignore(model)
    wrapped = DistributedDataParallel(model, **options)
    for _ in range(2):
        out = wrapped(torch.ones(2, 3))
        out.sum().backward()
    return known(out)[:2]


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_ddp_gives_out_what_the_model_gives(options: dict[str, bool]) -> None:
    assert run(2, ddp, options) == [(5, 3), (5, 2)]


def recomputed(reentrant: bool) -> Any:
    found = []
    for again in (False, True):
        model = Net(rows=False)
        x = torch.ones(2, 3, requires_grad=True)
        out = checkpoint(model, x, use_reentrant=reentrant) if again else model(x)
        shape = known(out)[:2]
        (out * out).sum().backward()
        found.append([shape, x.grad.tolist(), model.head.weight.grad.tolist()])
    return found


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_is_the_same_part_with_the_same_gradients(reentrant: bool) -> None:
    for first, second in run(2, recomputed, reentrant):
        assert first == second


def lower() -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        out = Net(rows=False)(torch.ones(2, 3))
        twice = out @ torch.ones(out.shape[-1], 2)
    return [out.dtype, known(out)[:2], twice.dtype]


def test_autocast_reaches_what_is_done_to_a_part() -> None:
    assert run(2, lower) == [[torch.bfloat16, (5, 3), torch.bfloat16], [torch.bfloat16, (5, 2), torch.bfloat16]]


def copied() -> Any:
    model = Net(rows=False)
    other = copy.deepcopy(model)
    x = torch.ones(2, 3)
    return [torch.equal(plain(model(x)), plain(other(x))), known(other(x))[:2]]


def test_a_copied_model_gives_parts_too() -> None:
    assert run(2, copied) == [[True, (5, 3)], [True, (5, 2)]]


def compiled(backend: str) -> Any:
    torch._dynamo.reset()
    model, x = Net(rows=False), torch.ones(2, 3)
    expected = model(x)
    (expected**2).sum().backward()
    grads = [p.grad.clone() for p in model.head.parameters()]
    model.zero_grad()
    fast: Callable[[Tensor], Tensor] = torch.compile(model, backend=backend)
    for _ in range(2):
        model.zero_grad()
        out = fast(x)
        (out**2).sum().backward()
    same = all(torch.allclose(p.grad, g) for p, g in zip(model.head.parameters(), grads, strict=True))
    return [same, torch.allclose(plain(out), plain(expected)), known(out)[:2]]


def test_a_compiled_model_gives_the_same_parts_and_gradients() -> None:
    assert run(2, compiled, "aot_eager") == [[True, True, (5, 3)], [True, True, (5, 2)]]


def gathered() -> Any:
    x = torch.ones(2, 3)
    head = Net().head
    out = head(nn.functional.pad(x, (0, 1)))
    whole = gather(out, -1, group_of(), 5)
    return [type(whole) is Tensor, tuple(whole.shape), whole.softmax(-1).sum().item()]


def test_a_part_that_is_gathered_is_a_whole_and_says_so() -> None:
    assert run(2, gathered) == [[True, (2, 5), pytest.approx(2)]] * 2
