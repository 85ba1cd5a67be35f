"""What the ranks of a real world do in the tests: training runs that are asked to stop, and those that go on from there."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from attrs import frozen
from torch import nn

from restoke import OptimizerSpec, Session, Spec, resume
from restoke.configs import AMPConfig
from restoke.errors import WorldError
from restoke.stopping import Stopped, end, listener
from restoke.stopping.gate import NEVER
from restoke.stopping.resuming import Plan, Stopping, Whole

SAMPLES, BATCH, EPOCHS, WINDOW = 64, 2, 2, 4


@frozen
class Ran:
    """How a run ended: at which optimizer step it stopped (None: not at all), the epoch of its loader, what it trained.

    Of buffers, rank 0's count; the others are given them at the next forward.
    """

    stopped: int | None
    epoch: int
    steps: int
    weights: list[float]
    buffers: list[float]


@contextmanager
def quickly(period: float = 0.002) -> Iterator[None]:
    """The store is looked into more often than in earnest, and afterwards the signals are given back."""
    before, listener.PERIOD = listener.PERIOD, period
    try:
        yield
    finally:
        end()
        listener.PERIOD = before


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))


def prepared(precision: str = "fp32", strategy: str = "auto") -> Session:
    settings = [AMPConfig(init_scale=2.0**20)] if precision == "fp16" else []  # its first steps overflow
    session = Session(Spec(strategy=strategy, device="cpu", precision=precision, accumulate=WINDOW, seed=3, settings=settings))
    session.prepare(net(), OptimizerSpec(torch.optim.AdamW, {"lr": 0.05}))
    return session


def values(tensors: Iterable[torch.Tensor]) -> list[float]:
    return [value for tensor in tensors for value in tensor.flatten().tolist()]


def train(session: Session, loader: Any, each: Callable[[int], None]) -> None:
    number = 0
    for _ in range(loader.epoch, EPOCHS):
        for x, y in loader:
            session.backward((session.forward(x) - y).square().mean())
            number += 1
            each(number)
            session.step()


def data() -> Any:
    generator = torch.Generator().manual_seed(5)
    return torch.utils.data.TensorDataset(
        torch.randn(SAMPLES, 4, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
    )


def run(folder: Path | None, each: Callable[[int], None] = lambda _: None, precision: str = "fp32", **options: Any) -> Ran:
    """One run, to its end or to where it is stopped."""
    session = prepared(precision)
    loader = session.loader(data(), BATCH, shuffle=True)
    stopped = None
    with quickly():
        if folder is not None:
            session.resume(folder, **options)
        try:
            train(session, loader, each)
        except Stopped as error:
            stopped = error.step
    module = session.parts.module
    return Ran(stopped, loader.epoch, session.steps, values(module.parameters()), values(module.buffers()))


def killer(at: int, own_thread: bool) -> Callable[[int], None]:
    """Sends SIGTERM to this process at a micro-batch: in its course, or from a thread beside it, whenever that comes to it."""
    reached = threading.Event()

    def send() -> None:
        reached.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    if own_thread:
        threading.Thread(target=send, daemon=True).start()

    def each(number: int) -> None:
        if number != at:
            return
        if own_thread:
            reached.set()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    return each


def many_stops(folder: str, trials: int) -> tuple[Ran, list[tuple[Ran, Ran]]]:
    """The run that nobody stopped; and of each trial the run that was, and the one that went on from there."""
    rank, whole, found = int(os.environ["RANK"]), run(None), []
    batches = SAMPLES * EPOCHS // BATCH // int(os.environ["WORLD_SIZE"])
    for trial in range(trials):
        dice = random.Random(trial)
        victim, at, beside = dice.randrange(2), dice.randrange(1, batches), dice.random() < 0.5
        each = killer(at, beside) if victim == rank else (lambda _: None)
        where = Path(folder, str(trial))
        found.append((run(where, each, keep=1), run(where)))
    return whole, found


def stopped_while_skipping(folder: str) -> list[Ran]:
    """In fp16 with a scale that overflows: before any step was taken."""
    rank = int(os.environ["RANK"])
    each = killer(2, own_thread=False) if rank == 1 else (lambda _: None)
    return [run(Path(folder), each, "fp16"), run(Path(folder), precision="fp16"), run(None, precision="fp16")]


def every_rank_at_once(folder: str) -> Ran:
    """As a launcher passes a signal on."""
    return run(Path(folder), killer(7, own_thread=False))


def saved_regularly(folder: str) -> list[str]:
    """Every second step, of which the newest three stay."""
    run(Path(folder), every=2, keep=3)
    return sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith("."))


def gan(folder: str | None, each: Callable[[int], None]) -> tuple[int | None, list[float], dict[str, Any]]:
    """Two sessions, three steps of the critic to one of the generator."""
    critic, generator = Session(seed=1, device="cpu"), Session(seed=2, device="cpu", accumulate=2)
    critic.prepare(nn.Linear(2, 1), OptimizerSpec(torch.optim.Adam, {"lr": 0.01}))
    generator.prepare(nn.Linear(2, 2), OptimizerSpec(torch.optim.Adam, {"lr": 0.01}))
    extras, stopped = {}, None
    with quickly():
        if folder is not None:
            extras = resume(folder, {"critic": critic, "generator": generator}, extras=lambda: {"iterations": generator.steps})
        try:
            while generator.steps < 12:
                iterate(critic, generator, each)
        except Stopped as error:
            stopped = error.step
    return stopped, values(p for session in (critic, generator) for p in session.parts.module.parameters()), extras


def iterate(critic: Session, generator: Session, each: Callable[[int], None]) -> None:
    for _ in range(2):
        for _ in range(3):
            critic.backward(critic.forward(torch.randn(4, 2)).mean())
            each(critic.steps)
            critic.step()
        judge = critic.parts.module.requires_grad_(False)
        generator.backward(-judge(generator.forward(torch.randn(4, 2))).mean())
        judge.requires_grad_(True)
        generator.step()


def stopped_gan(folder: str) -> list[Any]:
    rank = int(os.environ["RANK"])
    each = killer(8, own_thread=False) if rank == 0 else (lambda _: None)
    return [gan(folder, each), gan(folder, lambda _: None), gan(None, lambda _: None)]


@final
class Counted:
    """In a session's place: what it calls at its boundaries, without a model."""

    def __init__(self) -> None:
        self.world = Session(device="cpu").world
        self.steps = 0
        self._after: Callable[[], None] | None = None
        plan = Plan(folder=Path("nowhere"), every=None, keep=None, extras=dict)
        whole = Whole(last=self, save=lambda *_: "saved", load=lambda *_: {})  # type: ignore[arg-type]
        self.stopping = Stopping(whole, plan, (signal.SIGTERM,))
        self.gate = self.stopping._gate

    def attach(self, after: Callable[[], None] | None) -> None:
        self._after = after

    def step(self) -> None:
        self.steps += 1
        assert self._after is not None
        self._after()

    def finish(self) -> None:
        self.stopping.close(give_back=True)


def asked_after_another_has_finished() -> int:
    """Rank 1 has three boundaries and is gone; then rank 0 is asked to stop."""
    with quickly():
        run = Counted()
        for _ in range(3):
            run.step()
        if run.world.rank == 1:
            run.finish()
        dist.barrier()
        if run.world.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            while run.gate.at != NEVER or run.gate.decision != NEVER or not run.gate._decided.is_set():
                run.step()
            run.finish()
        return run.steps


def finishes_before_the_agreed_step() -> int:
    """Both have voted, and then rank 1 has no more data; rank 0 comes to the step alone, and goes on."""
    with quickly():
        run = Counted()
        for _ in range(20 if run.world.rank == 0 else 3):
            run.step()
        dist.barrier()
        if run.world.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        run.gate._decided.wait()
        assert run.gate.decision == 21
        for _ in range(9 if run.world.rank == 0 else 1):
            run.step()
        run.finish()
        return run.steps


def one_never_answers() -> str:
    """Rank 1 has not called `resume`."""
    before, listener.ACKNOWLEDGED = listener.ACKNOWLEDGED, 0.05
    error, here = "", Session(device="cpu").world
    with quickly():
        if here.rank == 0:
            run = Counted()
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                while True:
                    run.step()
            except WorldError as raised:
                error = str(raised)
            run.finish()
    listener.ACKNOWLEDGED = before
    dist.barrier()
    return error


def whole() -> Ran:
    """The run that nobody asks to stop."""
    return run(None)
