"""What holds on two real ranks: collectives, two models in one process, several backwards, seeds, half-filled windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel

from restoke import OptimizerSpec, Session
from restoke.comm import broadcast_json, gather_json, mean
from restoke.configs import DDPConfig
from restoke.errors import SpecError, WorldError
from restoke.testing.training import weights
from tests import ranks

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1})


def net(seed: int, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def share(session: Session) -> Tensor:
    """This rank's four rows of eight."""
    rows = torch.linspace(-1, 1, 32).reshape(8, 4)
    return rows[session.world.data_rank :: session.world.data_size]


def collectives() -> Any:
    world = Session(strategy="ddp").world
    value = {"rank": world.rank, "text": "é" * world.rank, "none": None}
    wide = mean(torch.tensor([1.0 + world.rank], dtype=torch.float16), world)
    return gather_json(value, world), broadcast_json(value if world.rank == 0 else object, world), wide.item(), str(wide.dtype)


def test_collectives_give_every_rank_the_same() -> None:
    want = [{"rank": 0, "text": "", "none": None}, {"rank": 1, "text": "é", "none": None}]
    for gathered, broadcast, average, dtype in ranks.run(2, collectives):
        assert gathered == want
        assert broadcast == want[0]
        assert (average, dtype) == (1.5, "torch.float32")


def gan(by_hand: bool) -> dict[str, Any]:
    """Three rounds of a GAN: two models, two optimizers, both under DDP."""
    one, two = Session(strategy="ddp"), Session(strategy="ddp")
    maker, judge = net(1, 5), net(2)
    reshape = nn.Linear(1, 4)
    if by_hand:
        make, judged = DistributedDataParallel(maker), DistributedDataParallel(judge)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, judge)]
    else:
        one.prepare(maker, SGD)
        two.prepare(judge, SGD)
        make, judged = one.forward, two.forward
    for _ in range(3):
        real = share(one)
        fake = reshape(make(real))
        loss = bce(judged(real), torch.ones(4, 1)) + bce(judged(fake.detach()), torch.zeros(4, 1))
        _step(loss, two, optimizers[1] if by_hand else None)
        _step(bce(judged(fake), torch.ones(4, 1)), one, optimizers[0] if by_hand else None)
        judge.zero_grad()
        maker.zero_grad()
    return weights(maker) | {f"judge.{name}": value for name, value in weights(judge).items()}


def _step(loss: Tensor, session: Session, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        session.backward(loss)
        session.step()
    else:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_gan_trains_as_by_hand() -> None:
    ours, hand = ranks.run(2, gan, False), ranks.run(2, gan, True)
    for name, want in hand[0].items():
        assert (ours[0][name] == want).all()
        assert (ours[1][name] == want).all()


def several_backwards(together: bool) -> dict[str, Any]:
    """Two forwards, then their losses' backwards. DDP reduces in the first backward alone."""
    session = Session(strategy="ddp")
    session.prepare(net(0), SGD)
    for _ in range(2):
        one = session.forward(share(session)).square().mean()
        two = session.forward(share(session) * 2).mean() * (1 + session.world.rank)
        if together:
            session.backward(one + two)
        else:
            session.backward(one)
            session.backward(two)
        session.step()
    return weights(session.parts.module)


def test_a_backward_that_ddp_leaves_local_is_averaged_before_the_step() -> None:
    apart, together = ranks.run(2, several_backwards, False), ranks.run(2, several_backwards, True)
    for name, want in together[0].items():
        assert (apart[0][name] == apart[1][name]).all(), f"{name} differs between the ranks"
        assert abs(apart[0][name] - want).max() < 1e-6


def unused(flush: bool) -> list[Any]:
    """Gradients where some ranks, and some parameters, have none."""
    session = Session(strategy="ddp", accumulate=3, settings=[DDPConfig(find_unused_parameters=True)])
    model = nn.ModuleDict(
        {"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False), "never": nn.Linear(1, 1, bias=False)}
    )
    session.prepare(_Pick(model), SGD)
    session.backward(session.forward("a" if session.world.rank == 0 else "b"))
    session.step()
    session.parts.reduce_grads()
    return [None if p.grad is None else p.grad.item() * 3 for p in session.parts.module.parameters()]


class _Pick(nn.Module):
    def __init__(self, layers: nn.ModuleDict) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, name: str) -> Tensor:
        output: Tensor = self.layers[name](torch.ones(1, 1))
        return output.sum()


def test_reducing_by_hand_leaves_none_what_no_rank_has() -> None:
    for grads in ranks.run(2, unused, True):
        assert grads == [pytest.approx(0.5), pytest.approx(0.5), None]


def seeded() -> tuple[list[float], list[float]]:
    session = Session(strategy="ddp", seed=3)
    initial = torch.rand(2).tolist()
    session.prepare(net(0), SGD)
    return initial, torch.rand(2).tolist()


def test_ranks_initialise_alike_and_drop_out_apart() -> None:
    (one, mine), (other, theirs) = ranks.run(2, seeded)
    assert one == other
    assert mine != theirs


def half_window(folder: str | None, save: bool) -> dict[str, Any]:
    """Saved within a window of four, after one and a half of them; continued to the end of the second."""
    session = Session(strategy="ddp", accumulate=4)
    session.prepare(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    )
    if not save:
        session.load(folder or "")
    for i in range(6 if not save else 0, 8):
        if i == 6 and save:
            session.save(folder or "")
        session.backward(session.forward(share(session) * (1 + i)).square().mean())
        session.step()
    assert session.steps == 2
    return weights(session.parts.module)


def test_a_window_saved_half_full_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    straight = ranks.run(2, half_window, str(tmp_path), True)
    for rank, (one, two) in enumerate(zip(straight, ranks.run(2, half_window, str(tmp_path), False), strict=True)):
        for name, want in one.items():
            # a new DDP takes rank 0's statistics in its first forward, an old one in the first of the next window
            if rank == 0 or "running" not in name:
                assert (two[name] == want).all(), name


def wrong_rank() -> str:
    try:
        Session(strategy="ddp", settings=[DDPConfig(local_rank=5)])
    except WorldError as error:
        return str(error)
    return "accepted"


def wrong_size() -> str:
    try:
        Session(strategy="ddp", processes=3)
    except SpecError as error:
        return str(error)
    return "accepted"


def test_a_rank_or_a_world_size_that_the_environment_contradicts_is_refused() -> None:
    assert all("local_rank=5: torchrun says" in said for said in ranks.run(2, wrong_rank))
    assert all("processes=3: 2 were started" in said for said in ranks.run(2, wrong_size))


def frozen_model() -> str:
    try:
        Session(strategy="ddp").prepare(net(0).requires_grad_(False), SGD)
    except SpecError as error:
        return str(error)
    return "accepted"


def test_a_model_with_nothing_to_train_is_refused() -> None:
    assert all("requires a gradient" in said for said in ranks.run(2, frozen_model))


def hooked(hook: str) -> dict[str, Any]:
    session = Session(strategy="ddp", settings=[DDPConfig(comm_hook=hook)])
    session.prepare(net(0), SGD)
    for _ in range(3):
        session.backward(session.forward(share(session)).square().mean() * (1 + session.world.rank))
        session.step()
    return weights(session.parts.module)


def allreduce_hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook as torchs

    return torchs(None, bucket)  # type: ignore[arg-type]


@pytest.mark.parametrize("hook", ["bf16", "fp16", "powersgd", "tests.test_distributed:allreduce_hook"])
def test_communication_hooks_keep_the_ranks_together(hook: str) -> None:
    plain, (one, two) = ranks.run(2, hooked_plain), ranks.run(2, hooked, hook)
    for name, want in plain[0].items():
        assert (one[name] == two[name]).all()
        assert abs(one[name] - want).max() < 5e-3


def hooked_plain() -> dict[str, Any]:
    return hooked("tests.test_distributed:allreduce_hook")


def unfrozen_later(clip: float | None) -> list[Any]:
    session = Session(strategy="ddp", accumulate=2, clip=clip)
    model = net(5)
    model[0].requires_grad_(False)
    session.prepare(model, SGD)
    session.backward(session.forward(share(session)).square().mean())
    session.step()
    model[0].requires_grad_(True)
    for rows in share(session).split(1)[:3]:
        session.backward(session.forward(rows).square().mean())
        session.step()
    return gather_json([p.tolist() for p in model.parameters()], session.world)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_parameters_that_are_unfrozen_later_stay_alike_on_all_ranks(clip: float | None) -> None:
    one, two = ranks.run(2, unfrozen_later, clip)[0]
    assert one == two
