"""The same training three ways, as functions that ranks run: by a session, by a hand-written loop, by one big batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke.configs import AMPConfig, ClipGradConfig
from restoke.optim import OptimizerSpec
from restoke.passes.convert import convert
from restoke.precision import dtype
from restoke.session import Session
from restoke.spec import Clip
from restoke.table import PRECISIONS
from restoke.testing.cases import Case
from restoke.testing.examples import EXAMPLES, Batch
from restoke.world import World

SIZE = 16  # samples in a global batch
SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})


def micro_batches(batch: Batch, world: World, accumulate: int) -> list[Batch]:
    """This rank's share of a global batch, in pieces."""
    share = [part[world.data_rank :: world.data_size].to(world.device) for part in batch]
    return list(zip(*(part.chunk(accumulate) for part in share), strict=True))


def weights(module: nn.Module) -> dict[str, Any]:
    """Every tensor of the state, exactly, in a form that travels between processes."""
    return {name: value.detach().double().cpu().numpy() for name, value in module.state_dict().items()}


def trained(session: Session) -> dict[str, Any]:
    """Every tensor of a session's model, whole. Every rank calls this."""
    return {name: value.double().numpy() for name, value in session.full_state_dict().items()}


def by_session(case: Case, steps: int | None = None) -> dict[str, Any]:
    """Trains the case's example with the verbs of a session."""
    session, losses = started(case), []
    for batch in EXAMPLES[case.example].batches(steps or case.steps, SIZE):
        losses += one_step(session, case, batch)
    return {"losses": np.array(losses), **trained(session)}


def started(case: Case) -> Session:
    """A session of the case, its model prepared."""
    session = Session(case.spec)
    session.prepare(EXAMPLES[case.example].build(), SGD)
    return session


def one_step(session: Session, case: Case, batch: Batch) -> list[float]:
    """One optimizer step of a session; the losses of its micro-batches, undivided."""
    losses = []
    for x, y in micro_batches(batch, session.world, case.spec.accumulate):
        output = session.forward(x)
        with session.forward_context():
            loss = EXAMPLES[case.example].loss(output, y)
        losses.append(loss.item())
        session.backward(loss)
        session.step()
    return losses


@final
class Bare:
    """A hand-written loop in PyTorch alone, for rows that promise to be it: plain, or under DistributedDataParallel."""

    def __init__(self, case: Case, world: World) -> None:
        self.case, self.world = case, world
        self.means = PRECISIONS[case.spec.precision].means
        self.module = EXAMPLES[case.example].build().to(world.device)
        convert(self.module, self.means)
        many = case.row.processes == "many"
        self.model = DistributedDataParallel(self.module, device_ids=world.device_ids) if many else self.module
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler(
            world.device.type, case.spec.setting(AMPConfig).init_scale, enabled=self.means.scaled
        )

    def one_step(self, batch: Batch) -> list[float]:
        losses, pieces = [], micro_batches(batch, self.world, self.case.spec.accumulate)
        for i, (x, y) in enumerate(pieces):
            with self.maybe_quiet(i + 1 < len(pieces)):
                loss = self.loss(x, y)
                losses.append(loss.item())
                self.backward(loss, len(pieces))
        self.finish()
        return losses

    def maybe_quiet(self, quiet: bool) -> AbstractContextManager[Any]:
        return self.model.no_sync() if quiet and isinstance(self.model, DistributedDataParallel) else nullcontext()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        compute = self.means.compute
        with torch.autocast(self.world.device.type, dtype(compute)) if compute else nullcontext():
            return EXAMPLES[self.case.example].loss(self.model(x), y)

    def backward(self, loss: Tensor, pieces: int) -> None:
        self.scaler.scale(loss / pieces if pieces > 1 else loss).backward()  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        if self.case.spec.clip is not None:
            self.scaler.unscale_(self.optimizer)
            clip_gradients(self.module, self.case.spec.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def clip_gradients(module: nn.Module, clip: Clip | None) -> None:
    """As bare PyTorch does it."""
    if clip is None:
        return
    if isinstance(clip, ClipGradConfig):
        nn.utils.clip_grad_value_(module.parameters(), clip.clip_value)
    else:
        nn.utils.clip_grad_norm_(module.parameters(), clip.max_norm, clip.norm_type)


def by_hand(case: Case) -> dict[str, Any]:
    """Trains the case's example without restoke's steps, in the same number of processes."""
    bare = Bare(case, Session(case.spec).world)
    losses = [loss for batch in EXAMPLES[case.example].batches(case.steps, SIZE) for loss in bare.one_step(batch)]
    return {"losses": np.array(losses), **weights(bare.module)}


def by_one_big_batch(case: Case) -> dict[str, Any]:
    """Trains the case's example in float32, one process, whole batches, clipped as the case says."""
    example = EXAMPLES[case.example]
    module = example.build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for x, y in example.batches(case.steps, SIZE):
        example.loss(module(x), y).backward()  # type: ignore[no-untyped-call]
        clip_gradients(module, case.spec.clip)
        optimizer.step()
        optimizer.zero_grad()
    return weights(module)
