"""What a training step costs over the hand-written loop: Session, Stoke's verbs, Accelerator, accelerate and lightning-fabric.

    python benchmarks/overhead.py --json overhead.json

CPU time of one optimizer step of a 64-64-10 MLP on 32 samples, one thread, all contenders in one process by turns; plain, and
with four micro-batches and clipping; in one process, and in two that train with DDP over gloo. Ratios are medians over rounds
with their 95 % interval; "by hand, again" is the same loop twice, and shows what chance alone does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from attrs import frozen
from paired import Ratio, Times, compare, interleave, machine, pooled
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from restoke import Accelerator, OptimizerSpec, Session, Spec, Stoke, StokeOptimizer
from restoke.stopping import end
from restoke.testing import ranks

HAND, AGAIN = "by hand", "by hand, again"
RESUMABLE = "Session, resumable"
NOWHERE = "no-such-folder"  # where nothing was saved, and nothing will be
BOUNDS = {"Session": 1.03, RESUMABLE: 1.03, "Stoke's verbs": 1.05, "Accelerator": 1.05}
SGD = {"lr": 0.01}
BUILDS = 8
Step = Callable[[], None]


@frozen
class Loop:
    """One optimizer step: micro-batches, the largest norm of the gradients, and whether DDP trains in several processes."""

    accumulate: int
    clip: float | None
    many: bool

    @property
    def spec(self) -> Spec:
        return Spec(strategy="ddp" if self.many else "single", device="cpu", accumulate=self.accumulate, clip=self.clip)


LOOPS = {"plain": (1, None), "accumulate 4, clip": (4, 1.0)}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 64), torch.randint(10, (32,))


def by_hand(loop: Loop) -> Step:
    return _by_hand_in_windows(loop) if loop.accumulate > 1 else _by_hand_plain(loop)


def _wrapped(loop: Loop) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = DistributedDataParallel(net()) if loop.many else net()
    return model, torch.optim.SGD(model.parameters(), **SGD)


def _by_hand_plain(loop: Loop) -> Step:
    (model, optimizer), (x, y) = _wrapped(loop), batch()

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _by_hand_in_windows(loop: Loop) -> Step:
    (model, optimizer), (x, y) = _wrapped(loop), batch()

    def micro_step() -> None:
        loss = F.cross_entropy(model(x), y) / loop.accumulate
        loss.backward()

    def within() -> None:
        for _ in range(loop.accumulate - 1):
            micro_step()

    def quiet() -> None:
        with model.no_sync():
            within()

    def step(before_the_last: Step = quiet if loop.many else within) -> None:
        before_the_last()
        micro_step()
        nn.utils.clip_grad_norm_(model.parameters(), loop.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_session(loop: Loop) -> Step:
    session = Session(loop.spec)
    session.prepare(net(), OptimizerSpec(torch.optim.SGD, SGD))
    return _with(session, loop)


def by_resumable(loop: Loop) -> Step:
    """A session that stops where a signal asks for it. There is one at a time: the one of the build before is over."""
    end()
    session = Session(loop.spec)
    session.prepare(net(), OptimizerSpec(torch.optim.SGD, SGD))
    session.resume(NOWHERE)
    return _with(session, loop)


def _with(session: Session, loop: Loop) -> Step:
    x, y = batch()

    def micro_step() -> None:
        loss = F.cross_entropy(session.forward(x), y)
        session.backward(loss)
        session.step()

    return _times(micro_step, loop.accumulate)


def by_stoke(loop: Loop) -> Step:
    optimizer = StokeOptimizer(optimizer=torch.optim.SGD, optimizer_kwargs=SGD)
    stoke, (x, y) = Stoke(net(), optimizer, F.cross_entropy, batch_size_per_device=32, spec=loop.spec, verbose=False), batch()

    def micro_step() -> None:
        loss = stoke.loss(stoke.model(x), y)
        stoke.backward(loss)
        stoke.step()

    return _times(micro_step, loop.accumulate)


def by_accelerate(loop: Loop) -> Step:
    from accelerate import Accelerator as Theirs
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()  # its settings are the process's: those of the loop before would stay
    GradientState._reset_state()
    return _prepared(Theirs(cpu=True, gradient_accumulation_steps=loop.accumulate), loop)


def _prepared(accelerator: Any, loop: Loop) -> Step:
    bare, (x, y) = net(), batch()
    model, optimizer = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), **SGD))

    def plain() -> None:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    def micro_step() -> None:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), loop.clip)
            optimizer.step()
            optimizer.zero_grad()

    return plain if loop.accumulate == 1 else _times(micro_step, loop.accumulate)


def by_fabric(loop: Loop) -> Step:
    from lightning_fabric import Fabric

    processes = {"devices": dist.get_world_size(), "strategy": "ddp"} if loop.many else {"devices": 1}
    fabric = Fabric(accelerator="cpu", **processes)
    fabric.launch()
    bare, (x, y) = net(), batch()
    model, optimizer = fabric.setup(bare, torch.optim.SGD(bare.parameters(), **SGD))

    def plain() -> None:
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    def window() -> None:
        for number in range(loop.accumulate):
            within = number + 1 < loop.accumulate
            with fabric.no_backward_sync(model, enabled=within):
                loss = F.cross_entropy(model(x), y) / loop.accumulate
                fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=loop.clip)
        optimizer.step()
        optimizer.zero_grad()

    return plain if loop.accumulate == 1 else window


def _times(micro_step: Step, number: int) -> Step:
    """A loop of one turn costs, too: the plain step has none."""
    if number == 1:
        return micro_step

    def step() -> None:
        for _ in range(number):
            micro_step()

    return step


CONTENDERS = {
    **dict.fromkeys((HAND, AGAIN), by_hand),
    "Session": by_session,
    RESUMABLE: by_resumable,
    "Stoke's verbs": by_stoke,
    "Accelerator": lambda loop: _prepared(Accelerator(cpu=True, gradient_accumulation_steps=loop.accumulate), loop),
}
PEERS = {"accelerate": by_accelerate, "lightning-fabric": by_fabric}


def present() -> dict[str, Callable[[Loop], Step]]:
    """The contenders, with the peers that are installed."""
    return CONTENDERS | {name: make for name, make in PEERS.items() if importlib.util.find_spec(name.replace("-", "_"))}


def measure(loop: Loop, rounds: int, per_turn: int) -> Times:
    """What one process, or this rank, measures of itself. Ranks wait for each other ahead of each turn.

    The contenders are built anew, in another order, every so many rounds: where memory happens to put a model's weights is
    worth as much as what is measured.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # what peers have to say is not about their speed
    if loop.many and not dist.is_initialized():
        dist.init_process_group("gloo")
    makers, shuffle = list(present().items()), random.Random(0).shuffle
    times: Times = {name: [] for name, _ in makers}
    for _ in range(BUILDS):
        shuffle(makers)
        steps = {name: make(loop) for name, make in makers}
        found = interleave(steps, -(-rounds // BUILDS), per_turn, before=dist.barrier if loop.many else lambda: None)
        for name, turns in found.items():
            times[name] += turns
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--per-turn", type=int, default=5, help="optimizer steps in each turn")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    versions = {name: version(name) for name in PEERS if name in present()}
    result: dict[str, Any] = {"machine": machine() | versions, "bounds": BOUNDS, "loops": []}
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in result["machine"].items()))
    for processes in args.processes:
        for name, (accumulate, clip) in LOOPS.items():
            loop = Loop(accumulate, clip, many=processes > 1)
            task = (measure, loop, args.rounds, args.per_turn)
            measured = ranks.run(processes, *task, timeout=3600) if loop.many else [measure(*task[1:])]
            found = compare(pooled(measured), HAND)
            show(console, f"{name}, {processes} process{'es' if processes > 1 else ''}", found)
            plain = {contender: attrs.asdict(ratio) for contender, ratio in found.items()}
            result["loops"].append(
                {"loop": name, "processes": processes, "rounds": len(measured[0][HAND]), "contenders": plain}
            )
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def show(console: Console, title: str, found: dict[str, Ratio]) -> None:
    """One loop's table."""
    table = Table("", "µs a step", "by hand = 1", "95 %", "bound", title=title, title_justify="left")
    for name, ratio in found.items():
        bound = BOUNDS.get(name)
        verdict = "" if bound is None else f"{bound} {'met' if ratio.ratio <= bound else 'MISSED'}"
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
        table.add_row(name, f"{ratio.seconds * 1e6:.1f}", f"{ratio.ratio:.3f}", interval, verdict)
    console.print(table)


if __name__ == "__main__":
    main()
