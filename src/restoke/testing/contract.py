"""What every strategy promises, as checks of one case each: run on real ranks, they raise AssertionError where it is broken."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import numpy as np
import torch
from attrs import evolve
from torch.utils._python_dispatch import TorchDispatchMode

from restoke.session import Session
from restoke.table import PRECISIONS
from restoke.testing import ranks
from restoke.testing.cases import Case, tried
from restoke.testing.examples import EXAMPLES
from restoke.testing.training import (
    SGD,
    SIZE,
    Bare,
    by_hand,
    by_one_big_batch,
    by_session,
    clip_gradients,
    micro_batches,
    one_step,
    started,
    trained,
    weights,
)

EXACT = 1e-6  # float32, SGD, 20 steps: what reduction order may change
COMPILED = 1e-5  # what compiled code, which sums in another order, may change besides
LOW = {"bf16": 3e-2, "fp16": 5e-3, "bf16-true": 0.2, "tf32": 1e-3, "fp8": 0.05}  # against float32; measured, with room


def check_training(case: Case) -> None:
    """Trains as bare PyTorch does: to the last bit where the row promises the same operations, else as one big batch would."""
    ours, hand, big = zip(
        *ranks.run(case.processes, _three_ways, case, timeout=60 if case.spec.compile == "none" else 110), strict=True
    )
    for rank, other in enumerate(ours[1:], start=1):
        _same(other, ours[0], f"rank {rank} against rank 0", skip=("losses", *_local(case)))
    if _bitwise(case):
        for rank, (mine, theirs) in enumerate(zip(ours, hand, strict=True)):
            _same(mine, theirs, f"rank {rank} against a hand-written loop", skip=_local(case) if rank else ())
    elif case.spec.precision == "fp32":
        _near(ours[0], hand[0], EXACT, "against torch's DDP", skip=("losses", *_local(case)))
    if EXAMPLES[case.example].per_sample:
        bound = COMPILED if case.spec.compile != "none" else LOW.get(case.spec.precision, EXACT)
        _near(ours[0], big[0], bound, "against one big batch in float32")


def _bitwise(case: Case) -> bool:
    """A row that cuts parameters into other pieces rounds them alike in float32 alone: torch's loops end otherwise."""
    if case.spec.compile != "none":
        return False
    return case.row.bitwise and (case.row.bare or PRECISIONS[case.spec.precision].means.params is None)


def _local(case: Case) -> tuple[str, ...]:
    """Statistics of batch norm are each rank's own between two forwards; what `trained` gives are rank 0's."""
    return tuple(name for name, _ in EXAMPLES[case.example].build().named_buffers())


def _three_ways(case: Case) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    ours = by_session(case)
    compared = _bitwise(case) or case.spec.precision == "fp32"
    return ours, by_hand(case) if compared else {}, by_one_big_batch(case)


def check_windows(case: Case) -> None:
    """Windows that end short weigh like the others, however the end is known: from a loader, or by `flush`."""
    wanted = _windows_by_hand(case)
    for how, ours in ranks.run(case.processes, _windows_both_ways, case)[0].items():
        _near(ours, wanted, EXACT, f"{how} against whole batches")


MICRO = 7  # micro-batches in the epoch: one window of four, and one of three


def _windows_both_ways(case: Case) -> dict[str, dict[str, Any]]:
    return {how.__name__: how(case) for how in (_windows_by_loader, _windows_by_flush)}


def _windows_by_loader(case: Case) -> dict[str, Any]:
    session = started(case)
    session.windows.begin(session)
    for i, batch in enumerate(EXAMPLES[case.example].batches(MICRO, SIZE)):
        session.windows.batch(session, MICRO - i, i + 1 == MICRO)
        _one_micro_step(session, case, batch)
    session.windows.end(session)
    assert session.steps == 2
    return trained(session)


def _windows_by_flush(case: Case) -> dict[str, Any]:
    session = started(case)
    for batch in EXAMPLES[case.example].batches(MICRO, SIZE):
        _one_micro_step(session, case, batch)
    assert session.flush() is not None
    assert session.flush() is None
    return trained(session)


def _one_micro_step(session: Session, case: Case, batch: Any) -> None:
    (x, y), *_ = micro_batches(batch, session.world, 1)
    session.backward(EXAMPLES[case.example].loss(session.forward(x), y))
    session.step()


def _windows_by_hand(case: Case) -> dict[str, Any]:
    example = EXAMPLES[case.example]
    module, batches = example.build(), example.batches(MICRO, SIZE)
    optimizer = SGD.build(module.named_parameters())
    for window in (batches[:4], batches[4:]):
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        example.loss(module(x), y).backward()  # type: ignore[no-untyped-call]
        clip_gradients(module, case.spec.clip)
        optimizer.step()
        optimizer.zero_grad()
    return weights(module)


def check_quiet(case: Case) -> None:
    """Within a window gradients do not travel; at its end none that a hand-written loop would not have."""
    for ours, hand in ranks.run(case.processes, _observed, case):
        *within, end = ours
        assert not any(_reductions(ops, case) for ops in within), f"gradients are reduced within a window: {within}"
        if case.row.bare:
            assert list(map(_costly, ours)) == list(map(_costly, hand)), f"{ours} where a hand-written loop has {hand}"
        assert case.processes == 1 or _collectives(end), "gradients were not reduced at the window's end"


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _collectives(ops: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in ops.items() if name.startswith(("c10d.", "_c10d_functional."))}


def _reductions(ops: dict[str, int], case: Case) -> list[str]:
    """Buffers may be broadcast within a window, as DDP does, and parameters gathered; gradients may not travel.

    Where layers are sharded, activations do: by the functional collectives, which nothing else uses.
    """
    found = [name for name in _collectives(ops) if "reduce" in name]
    return [name for name in found if case.spec.tensor == 1 or name.startswith("c10d.")]


def _costly(ops: dict[str, int]) -> dict[str, int]:
    return _collectives(ops) | {
        name: n for name, n in ops.items() if name.startswith(("aten._local_scalar_dense", "aten.item", "aten.nonzero"))
    }


def _observed(case: Case) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """The operations of each micro-step of the third window, by a session and by hand: DDP settles its buckets in the first."""
    batch = EXAMPLES[case.example].batches(1, SIZE)[0]
    session = started(case)
    for _ in range(2):
        one_step(session, case, batch)
    ours = []
    for x, y in micro_batches(batch, session.world, case.spec.accumulate):
        with _Ops() as ops:
            with session.forward_context():
                loss = EXAMPLES[case.example].loss(session.forward(x), y)
            session.backward(loss)
            session.step()
        ours.append(dict(ops.seen))
    return ours, _observed_by_hand(case, batch) if case.row.bare else []


def _observed_by_hand(case: Case, batch: Any) -> list[dict[str, int]]:
    """As `Bare.one_step`, less the reading of the loss."""
    bare = Bare(case, Session(case.spec).world)
    for _ in range(2):
        bare.one_step(batch)
    seen, pieces = [], micro_batches(batch, bare.world, case.spec.accumulate)
    for i, (x, y) in enumerate(pieces):
        with _Ops() as ops, bare.maybe_quiet(i + 1 < len(pieces)):
            bare.backward(bare.loss(x, y), len(pieces))
            if i + 1 == len(pieces):
                bare.finish()
        seen.append(dict(ops.seen))
    return seen


BEFORE, AFTER = 2, 2  # steps: momentum exists when it is saved, and is read twice after it was restored


def check_resuming(case: Case) -> None:
    """Saved, loaded into a new session and continued, it is as if it had never stopped: to the last bit at the same world size,
    nearly so from or to one process."""
    with tempfile.TemporaryDirectory() as folder:
        straight = ranks.run(case.processes, _save_midway, case, folder)
        resumed = ranks.run(case.processes, _go_on, case, folder)
        for rank, (one, two) in enumerate(zip(resumed, straight, strict=True)):
            _same(one, two, f"rank {rank} resumed against uninterrupted")
        fewest = tried(case.row)[0] * case.spec.tensor
        if case.processes > fewest and EXAMPLES[case.example].per_sample:
            fewer = ranks.run(fewest, _go_on, evolve(case, processes=fewest), folder)[0]
            _near(fewer, straight[0], LOW.get(case.spec.precision, EXACT), f"resumed by {fewest} processes")


def _save_midway(case: Case, folder: str) -> dict[str, Any]:
    session, batches = started(case), EXAMPLES[case.example].batches(BEFORE + AFTER, SIZE)
    for batch in batches[:BEFORE]:
        one_step(session, case, batch)
    session.save(folder, "midway")
    for batch in batches[BEFORE:]:
        one_step(session, case, batch)
    return trained(session)


def _go_on(case: Case, folder: str) -> dict[str, Any]:
    session = started(case)
    session.load(folder)
    for batch in EXAMPLES[case.example].batches(BEFORE + AFTER, SIZE)[BEFORE:]:
        one_step(session, case, batch)
    return trained(session)


def _same(got: dict[str, Any], want: dict[str, Any], what: str, skip: tuple[str, ...] = ()) -> None:
    assert got.keys() == want.keys(), f"{what}: {sorted(got)} for {sorted(want)}"
    for name in [name for name in want if name not in skip]:
        assert np.array_equal(got[name], want[name]), f"{what}: {name} differs by {np.abs(got[name] - want[name]).max():.3g}"


def _near(got: dict[str, Any], want: dict[str, Any], bound: float, what: str, skip: tuple[str, ...] = ()) -> None:
    for name in [name for name in want if name not in skip]:
        wanted = want[name]
        far = float(np.abs(got[name] - wanted).max())
        assert far <= bound, f"{what}: {name} differs by {far:.3g}, more than {bound:g}"


CHECKS = (check_training, check_windows, check_quiet, check_resuming)


def applies(check: Any, case: Case) -> bool:
    """Whether a check says anything about a case: windows need several micro-batches, and exact arithmetic.

    What is compiled is trained once: compiling takes longer than all other checks of its row.
    """
    if case.spec.compile != "none":
        return check is check_training
    if check is check_windows:
        return case.spec.precision == "fp32" and case.spec.accumulate > 1 and EXAMPLES[case.example].per_sample
    if check is check_quiet:
        return case.spec.accumulate > 1 or case.row.bare
    return True
