"""Stoke's verbs on a GPU: the same training, and nothing that waits for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.facades.stoke.samples import batches, micro_step, net, stoke, weights

pytestmark = pytest.mark.gpu


def test_the_verbs_train_as_bare_pytorch_and_wait_for_nothing() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    it = stoke(weighted, gpu=True, grad_accum_steps=2, grad_clip=0.5)
    data = [(x.cuda(), y.cuda()) for x, y in batches(40)]
    for x, y in data[:2]:
        micro_step(it, x, y)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for x, y in data[2:]:
            micro_step(it, x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(data):
        last = weighted(model(x), y)
        (last / 2).backward()
        if index % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert weights(it.model_access) == weights(model)
    assert it.step_loss == last.item()
    assert (it.rank, it.gpu, it.device.type, it.detach_and_sync_loss(last, device="cpu")) == ("gpu", True, "cuda", last.item())


@pytest.mark.parametrize("fp16", [None, "amp"])
def test_batches_come_to_the_gpu_and_several_losses_are_followed_there(fp16: str | None) -> None:
    it = stoke([nn.CrossEntropyLoss(), lambda output, target: output.square().mean()], gpu=True, fp16=fp16)
    values = []
    for x, y in it.DataLoader([(torch.randn(6), i % 3) for i in range(160)], pin_memory=True):
        assert (x.device.type, y.device.type, y.dtype) == ("cuda", "cuda", torch.int64)
        values.append([value.item() for value in micro_step(it, x, y)])
    average = values[0]
    for pair in values[1:]:
        average = [0.1 * new + 0.9 * old for new, old in zip(pair, average, strict=True)]
    assert it.ema_loss == pytest.approx(average, rel=1e-6)
    assert it.step_loss == pytest.approx(values[-1])
