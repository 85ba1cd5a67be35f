"""What is this strategy's own: its settings, and what it sends."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from restoke import OptimizerSpec, Session, Spec
from restoke.errors import SpecError
from restoke.testing import ranks


def declared(**settings: str | None) -> Spec:
    return Spec(strategy="averaged", device="cpu", accumulate=2, clip=1.0, settings={"averaged": settings})


def messages(reduce: str | None) -> tuple[Counter[str], list[float]]:
    """What one window of two micro-batches sends, by dtype, and the weights after it."""
    sent: Counter[str] = Counter()
    session = Session(declared(reduce=reduce))
    torch.manual_seed(session.world.rank)  # begun apart: the first rank's parameters count
    model = nn.Linear(3, 1)
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    send = dist.all_reduce

    def counted(tensor: torch.Tensor, *args, **kwargs):
        sent[str(tensor.dtype)] += 1
        return send(tensor, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", counted):
        for i in range(2):
            session.backward(session.forward(torch.full((4, 3), float(i + session.world.rank))).sum())
            session.step()
    return sent, model.weight.flatten().tolist()


@pytest.mark.parametrize(("reduce", "kind"), [(None, "torch.float32"), ("bfloat16", "torch.bfloat16")])
def test_a_window_is_one_message_in_the_dtype_declared(reduce: str | None, kind: str) -> None:
    (first, mine), (second, theirs) = ranks.run(2, messages, reduce)
    assert first == second == {kind: 1}
    assert mine == theirs


def gradients() -> list[bool]:
    """Which parameters get one: of three, the first on rank 0 alone, the second on both, the third on none."""
    session = Session(declared())
    model = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(3))
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    used = list(model)[session.world.rank : 2]
    session.backward(sum(layer(torch.ones(1, 1)).sum() for layer in used))
    session.parts.stepper.clip(session.spec.clip)
    return [p.grad is not None for p in model.parameters()]


def test_a_parameter_gets_a_gradient_on_all_ranks_or_on_none() -> None:
    assert ranks.run(2, gradients) == [[True, True, False]] * 2


def test_what_would_overflow_is_refused() -> None:
    with pytest.raises(SpecError, match=r"AveragedConfig.reduce='float16': the sum of the ranks' gradients would overflow"):
        Session(declared(reduce="float16"))
