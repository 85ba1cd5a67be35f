"""What the ranks of a real world do in the tests of saving beside training: functions that the pool and forks can import."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from restoke import OptimizerSpec, Session, checkpoint
from restoke.checkpoint import background, messages
from restoke.checkpoint.background import Saver
from restoke.checkpoint.disk import Disk
from restoke.checkpoint.manifest import NAME
from restoke.launch.leave import leave
from restoke.world import World
from tests.checkpoint import states
from tests.checkpoint.on_ranks import joined, refusal, sharded
from tests.checkpoint.states import ONE
from tests.faults.saves import NEW, filled


@contextlib.contextmanager
def held_back(tag: str = "") -> Iterator[threading.Event]:
    """Within, nothing (or not this tag) is written beside training before the event is set."""
    event, real = threading.Event(), background.commit

    def commit(agreed: Any, *args: Any) -> Path:
        assert tag not in ("", agreed.target.name) or event.wait(30)
        return real(agreed, *args)

    background.commit = commit
    try:
        yield event
    finally:
        event.set()
        background.commit = real


def trained(strategy: str) -> tuple[Session, Callable[[], None]]:
    """A session, and what trains it for one step."""
    session = Session(strategy=strategy, device="cpu", seed=3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    session.prepare(model, OptimizerSpec(torch.optim.AdamW, {"lr": 0.1}))
    inputs = torch.randn(4, 5)

    def train() -> None:
        session.backward(session.forward(inputs).square().mean())
        session.step()

    return session, train


def contents(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The ranks' files, and the manifest without what differs from save to save."""
    body = json.loads((path / NAME).read_text())["manifest"]
    files = {file.name: file.read_bytes() for file in path.glob("*.safetensors")}
    return files, {key: value for key, value in body.items() if key not in ("created", "generation")}


def train_on_while_saving(folder: Path, strategy: str) -> list[str]:
    """A state is saved as usual, and beside training that goes on before anything is written; twice."""
    session, train = trained(strategy)
    for turn in range(2):
        train()
        extras = {"list": [turn], "tensor": torch.full((3,), turn), "array": torch.zeros(2).numpy()}
        session.save(folder / "waited", str(turn), extras)
        with held_back():
            session.save(folder / "beside", str(turn), extras, wait=False)
            for _ in range(3):
                train()
            extras["list"].append(9)
            extras["tensor"].fill_(9)
            extras["array"][0] = 9
            assert not (folder / "beside" / str(turn)).exists()
        session.wait_saved()
    return tags(folder / "beside")


def tags(folder: Path) -> list[str]:
    return sorted(entry.tag for entry in checkpoint.listing(folder, verify=True) if entry.good)


def load_what_is_being_saved(folder: Path) -> bool:
    """Whether a load right after a save has begun finds that save."""
    session, train = trained("ddp")
    train()
    before = [p.detach().clone() for p in session.parts.module.parameters()]
    session.save(folder, wait=False)
    train()
    session.load(folder)
    return all(map(torch.equal, before, session.parts.module.parameters()))


def save_twice(folder: Path) -> tuple[list[str], list[str]]:
    """What was good when the second save returned, before which the first could not be written; and at last, one being kept."""
    world = joined()
    saver = Saver(world)
    with held_back("1") as event:
        saver.start(folder, "1", sharded(world, 1.0), meta={})
        opener = threading.Timer(0.1, event.set)
        opener.start()
        saver.start(folder, "2", sharded(world, 2.0), meta={}, keep=1)
        seen = tags(folder)
        opener.join()
    saver.finish()
    return seen, tags(folder)


def save_from_two_sessions(folder: Path) -> tuple[bool, list[str]]:
    """Whether the second saver is done while the first is held back; and what is there at last, newest first."""
    world = joined()
    savers = [Saver(world), Saver(world)]
    with held_back("1"):
        for saver, tag in zip(savers, "12", strict=True):
            saver.start(folder, tag, sharded(world), meta={})
        (latest,) = background._LATEST
        latest.join(0.3)
        early = not latest.is_alive()
    for saver in savers:
        saver.finish()
    return early, [entry.tag for entry in checkpoint.listing(folder)]


def fail(folder: Path) -> list[str]:
    """What a save that fails on rank 1 while it is written is told with, by each way to hear of it, and what is there then."""
    world = joined()
    saver, session = Saver(world), trained("ddp")[0]
    saver.start(folder, "good", sharded(world, 1.0), meta={})

    def begin() -> None:
        saver.start(folder, "bad", sharded(world, 2.0), meta={}, disk=full_on(1, world))
        saver.join()

    begin()
    said = [refusal(saver.wait), refusal(saver.wait)]
    begin()
    said += [refusal(saver.finish), refusal(saver.finish)]
    begin()
    said += [refusal(begin), refusal(saver.finish)]
    session.saver = saver
    begin()
    said += [refusal(session.wait_saved)]
    begin()
    said += [refusal(lambda: session.save(folder, "waited")), session.save(folder, "waited")]
    return [*said, *tags(folder)]


def full_on(rank: int, world: World) -> Disk:
    def before(operation: str, path: Path) -> None:
        if world.rank == rank and operation == "sync":
            raise OSError(28, "No space left on device")

    return Disk(before)


def fail_to_copy(folder: Path) -> str:
    """What all ranks hear where one has no memory for the copy."""
    world = joined()
    saver = Saver(world)

    def take(tensors: Any) -> Any:
        raise RuntimeError("not enough memory")

    if world.rank == 1:
        saver._snapshot.take = take  # type: ignore[method-assign]
    saver.start(folder, "a", sharded(world), meta={})
    return refusal(saver.wait)


def refuse_at_once(folder: Path) -> str:
    world = joined()
    captured = sharded(world)
    if world.rank == 1:
        captured.values["rank/bad"] = {"fn": print}
    return refusal(lambda: Saver(world).start(folder, "a", captured, meta={}))


def lose_a_rank(folder: Path) -> str:
    """Rank 1 gives no sign of life when it should write."""
    world = joined()
    kept = messages.SILENCE, messages.BEAT
    messages.SILENCE, messages.BEAT = 0.6, 0.1
    saver, real = Saver(world), messages.StoreMessages._exchange

    def silent(self: Any, own: str, ranks: list[int]) -> list[Any]:
        if self._rank == 1 and self._count == 1:
            self._ended.set()
            assert woken.wait(30)
        return real(self, own, ranks)

    woken = threading.Event()
    messages.StoreMessages._exchange = silent  # type: ignore[method-assign]
    try:
        saver.start(folder, "a", sharded(world), meta={})
        if world.rank == 1:
            threading.Timer(1.5, woken.set).start()
        return refusal(saver.wait)
    finally:
        messages.SILENCE, messages.BEAT = kept
        messages.StoreMessages._exchange = real  # type: ignore[method-assign]


def save_beside(folder: Path, world: World, tag: str, keep: int | None) -> None:
    """For trials in which it is killed."""
    messages.SILENCE, messages.BEAT = 1.0, 0.1
    saver = Saver(world)
    saver.start(folder, tag, filled(NEW, world), meta={"mark": NEW}, keep=keep)
    saver.wait()


def save_and_end(folder: Path) -> None:
    """One save that will succeed and one that will fail; neither is waited for."""
    (folder / "taken").mkdir()
    slow = threading.Event()
    threading.Timer(0.2, slow.set).start()
    disk = Disk(lambda operation, path: slow.wait(30) and None)
    Saver(ONE).start(folder, "good", states.filled(5.0), meta={"mark": 5.0}, disk=disk)
    Saver(ONE).start(folder, "taken", states.filled(6.0), meta={})


def save_and_leave(folder: Path) -> None:
    """The same, and then as a launched rank ends."""
    sys.stderr = (folder / "said").open("w")
    save_and_end(folder)
    leave(0)
