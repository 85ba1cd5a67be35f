"""What two ranks do with Stoke objects; each function returns what a test compares."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke import DDPConfig, Stoke
from restoke.errors import RestokeError
from tests.facades.stoke.samples import CE, SGD, batches, micro_step, net, samples, stoke, weights
from tests.facades.stoke.test_checkpoints import built, run

Data = list[tuple[Tensor, Tensor]]


def share(count: int) -> Data:
    """Other data on each rank."""
    return batches(count, seed=10 + dist.get_rank())


def second(output: Tensor, target: Tensor) -> Tensor:
    return output.square().mean()


def third(output: Tensor, target: Tensor) -> Tensor:
    return output.abs().mean()


LOSSES = {1: CE, 3: [CE, second, third]}


def by_stoke(losses: int, accumulate: int, options: dict[str, Any]) -> list[list[float]]:
    it = stoke(LOSSES[losses], distributed="ddp", grad_accum_steps=accumulate, **options)
    for x, y in share(8):
        micro_step(it, x, y)
    return weights(it.model_access)


def by_bare_ddp(losses: int, accumulate: int, clip: float | None) -> list[list[float]]:
    model = net()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(share(8)):
        ddp.require_backward_grad_sync = (index + 1) % accumulate == 0
        output = ddp(x)
        values = [CE(output, y), second(output, y), third(output, y)][:losses]
        sum(value / accumulate if accumulate > 1 else value for value in values).backward()  # type: ignore[union-attr]
        if (index + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def reductions(accumulate: int, losses: int) -> list[int]:
    """How many gradient buckets were reduced in each micro-batch."""
    it, seen = stoke(LOSSES[losses], distributed="ddp", grad_accum_steps=accumulate), []
    ddp = it.session.parts.model
    assert isinstance(ddp, DistributedDataParallel)

    def count(state: Any, bucket: Any) -> Any:
        seen[-1] += 1
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()  # type: ignore[union-attr]
        return future.then(lambda done: done.value()[0] / 2)

    ddp.register_comm_hook(None, lambda state, bucket: count(state, bucket))  # noqa: PLW0108 - annotations are refused
    for x, y in share(8):
        seen.append(0)
        micro_step(it, x, y)
    return seen


def settings() -> dict[str, Any]:
    """The group is initialised already, and the local rank is text, as os.environ has it."""
    config = DDPConfig(
        local_rank=os.getenv("LOCAL_RANK"), static_graph=True, no_sync=False, find_unused_parameters=False, bucket_cap_mb=1
    )
    it = stoke(distributed="ddp", configs=[config], batch_size=4, grad_accum_steps=2)
    ddp: Any = it.session.parts.model
    micro_step(it, *share(1)[0])
    told = {
        "static": ddp.static_graph,
        "cap": ddp.bucket_bytes_cap,
        "config": it.ddp_config == config,
        "model": it.model_access is ddp.module,
    }
    ranks = {"rank": it.rank, "size": it.world_size, "effective": it.effective_batch_size, "ddp": it.is_ddp, "gpu": it.gpu}
    return told | ranks | {"distributed": it.distributed, "status": it.status.status["world_size"]}


def uneven_losses() -> tuple[float, float]:
    """Rank 1 evaluates, reads and prints more often than rank 0: nobody waits for anybody."""
    it, (x, y) = stoke(distributed="ddp"), share(1)[0]
    it.loss(it.model(x), y)
    if it.rank == 1:
        with it.evaluate():
            for _ in range(5):
                it.loss(it.model_access(x), y)
        it.loss(it.model_access(x), y)
        assert it.step_loss
        assert it.ema_loss
        assert it.num_model_parameters
        it.print_num_model_parameters()
        it.print("mine")
        assert it.status.status["world_size"] == 2
    it.barrier()
    it.backward(it.loss(it.model(x), y))
    it.step()
    mean = it.detach_and_sync_loss(torch.tensor(float(it.world.rank)))
    return mean, it.step_loss  # type: ignore[return-value]


def synced() -> dict[str, Any]:
    """Losses that are 1 on rank 0 and 2 on rank 1, in float16."""
    mine = torch.tensor(1.0 + dist.get_rank(), dtype=torch.float16)
    model = nn.Linear(1, 1)
    it = Stoke(model, SGD, [lambda out: out, lambda out: out * 30000], 1, 2, distributed="ddp", info_rank=(1,), verbose=False)
    values = it.loss(mine)
    out = io.StringIO()
    with redirect_stdout(out):
        it.print_synced_loss(values)
        it.print_synced_loss(values[0], "one", single_line=True)
        it.print_ema_loss()
        it.print_mean_accumulated_synced_loss("never")
        it.print_on_devices("there", rank=[0])
        it.print("here")
    both = it.detach_and_sync_loss((mine, mine * 30000))
    return {"out": out.getvalue(), "tuple": both, "one": it.detach_and_sync_loss(mine, device="cpu"), "local": it.step_loss}


def nobody_prints() -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        it = stoke(distributed="ddp", info_rank=None, verbose=True)
        it.print("nothing")
        it.print_on_devices("but this", rank=1)
    return out.getvalue()


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)  # type: ignore[no-any-return]


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


BCE = nn.BCEWithLogitsLoss()


def noise(step: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def gan_by_stoke(precision: str) -> list[list[float]]:
    """Two models, two optimizers, two Stoke objects over one process group."""
    options = {"verbose": False, "distributed": "ddp", "precision": precision}
    make, judge = Stoke(Generator(), SGD, BCE, 8, **options), Stoke(Critic(), SGD, BCE, 8, **options)
    for step, (real, _) in enumerate(share(4)):
        fake = make.model(noise(step))
        verdicts = judge.model(torch.cat([real, fake.detach()]))
        truth = torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])
        judge.backward(judge.loss(verdicts, truth))
        judge.step()
        make.backward(make.loss(judge.model(fake), torch.ones(8, 1)))
        make.step()
        judge.zero_grads()
    assert (make.optimizer_steps, judge.optimizer_steps) == (4, 4)
    return weights(make.model_access) + weights(judge.model_access)


def gan_by_hand() -> list[list[float]]:
    make, judge = Generator(), Critic()
    models = DistributedDataParallel(make), DistributedDataParallel(judge)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    for step, (real, _) in enumerate(share(4)):
        fake = models[0](noise(step))
        BCE(models[1](torch.cat([real, fake.detach()])), torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        BCE(models[1](fake), torch.ones(8, 1)).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        optimizers[1].zero_grad()
    return weights(make) + weights(judge)


def saved(folder: str, own_name: bool) -> list[Any]:
    it = stoke(distributed="ddp")
    micro_step(it, *share(1)[0])
    name = f"at-{dist.get_rank()}" if own_name else "checkpoint"
    path, tag = it.save(folder, name=name)
    return [path, tag, it.load(path, tag), sorted(name for name in os.listdir(folder) if name[0] != ".")]


def saved_where_nothing_can_be(folder: str) -> list[str]:
    """The path is a file, and only rank 0 looks first: what fails is raised on every rank, and none waits."""
    it, told = stoke(distributed="ddp"), []
    for path, options in ((Path(folder, "file"), {}), (Path(folder, "none"), {"create_directory": False})):
        try:
            it.save(path, **options)
        except RestokeError as error:
            told.append(f"{type(error).__name__} {error.problems[0].axis}")
    return told


def interrupted(folder: str | None, at: int) -> list[Any]:
    """A run of 3 epochs; with a folder, stopped after `at` micro-batches and taken up by new objects."""
    data, options = samples(28), {"distributed": "ddp", "seed": 5}
    it = built(1, **options)
    loader = it.DataLoader(data, shuffle=True)
    if folder is None:
        return run(it, loader, epochs=3)
    told = run(it, loader, epochs=3, stop=at)
    it.save(folder)
    again = built(2, **options)
    same = again.DataLoader(data, shuffle=True)
    again.load(folder)
    return told + run(again, same, epochs=4, stop=12 - at)


def followed(folder: str) -> tuple[Any, Any]:
    """Each rank's own average, which a checkpoint keeps."""
    it = stoke(distributed="ddp")
    for x, y in share(3):
        micro_step(it, x, y)
    it.save(folder)
    return it.step_loss, it.ema_loss


def waited(folder: str) -> bool:
    """Rank 0 writes a file, late; the others look for it behind the barrier."""
    it, file = stoke(distributed="ddp"), Path(folder, "written")
    if it.rank == 0:
        for _ in range(50):
            torch.ones(200, 200) @ torch.ones(200, 200)
        file.touch()
    it.barrier()
    return file.exists()
