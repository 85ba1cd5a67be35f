"""The table of what ranks measured: the mean over them by class, at each moment and at the peak, and the saving against DDP."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import attrs
from rich.console import Console
from rich.table import Table

from restoke.held import CLASSES, MOMENTS, Held
from restoke.memory.records import RankMemory, under_ddp

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
WIDTH = 110
Column = tuple[str, list[Held]]


def table(ranks: Sequence[RankMemory]) -> str:
    """As text. Its columns are of the last epoch; where there are several, a line for each follows."""
    columns = [column for column in _columns(ranks) if column[1]]
    grid = Table(title=_title(ranks), title_justify="left")
    grid.add_column("")
    for name, _ in columns:
        grid.add_column(name, justify="right")
    for kind in CLASSES:
        figures = [_mean(attrs.asdict(held)[kind] for held in each) for _, each in columns]
        if any(figures):
            grid.add_row(kind, *map(size, figures))
    grid.add_section()
    grid.add_row("total", *(size(_mean(held.total for held in each)) for _, each in columns))
    said = [_peak(ranks), _saving(ranks), *_elsewhere(ranks), *_epochs(ranks)]
    return _text(grid) + "".join(f"{line}\n" for line in said)


def size(nbytes: float) -> str:
    """Bytes in the largest unit of 1024 that they fill; nothing for none."""
    if not nbytes:
        return "-"
    power = 0
    while nbytes >= 1024 and power + 1 < len(UNITS):
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:.1f} {UNITS[power]}" if power else f"{nbytes:.0f} B"


def saving(ranks: Sequence[RankMemory]) -> float | None:
    """How much less than under DDP the model and its optimizer hold after a step, as a share. None where nothing stepped, or
    several sessions did, whose gradients are not there at the same time."""
    held = _after_step(ranks) if len(ranks[0].sessions) == 1 else []
    return 1 - _mean(each.state for each in held) / under_ddp(ranks) if held else None


def _after_step(ranks: Sequence[RankMemory]) -> list[Held]:
    return [rank.epochs[-1].held[MOMENTS[-1]] for rank in ranks if MOMENTS[-1] in rank.epochs[-1].held]


def _columns(ranks: Sequence[RankMemory]) -> Iterable[Column]:
    last = [rank.epochs[-1] for rank in ranks]
    for moment in MOMENTS:
        yield moment, [epoch.held[moment] for epoch in last if moment in epoch.held]
    yield "at the peak", [epoch.at_peak for epoch in last if epoch.at_peak.total]


def _title(ranks: Sequence[RankMemory]) -> str:
    first = ranks[0]
    names = ", ".join(dict.fromkeys(str(session.spec.get("strategy")) for session in first.sessions))
    count = f"{len(ranks)} of {first.size} ranks" if len(ranks) < first.size else f"{first.size} ranks"
    return f"Memory of a rank: {names} on {first.device}" + (f", mean of {count}" if first.size > 1 else "")


def _peak(ranks: Sequence[RankMemory]) -> str:
    worst = max(ranks, key=_highest)
    largest = f", largest {size(_highest(worst))} on rank {worst.rank}" if len(ranks) > 1 else ""
    return f"Peak of {ranks[0].source}: {size(_mean(map(_highest, ranks)))}{largest}"


def _highest(rank: RankMemory) -> int:
    return max(epoch.peak for epoch in rank.epochs)


def _saving(ranks: Sequence[RankMemory]) -> str:
    share = saving(ranks)
    if share is None:
        why = "Several sessions were trained" if len(ranks[0].sessions) > 1 else "No optimizer step was seen"
        return f"{why}: nothing to compare with DDP"
    formula = "parameters, gradients and their buckets, optimizer state, buffers"
    than = f"{abs(share):.1%} {'less' if share > 0 else 'more'} than" if abs(share) > 0.0005 else "as much as"
    return f"After a step, model and optimizer hold {than} under DDP: {size(under_ddp(ranks))}\n({formula}, by formula)"


def _elsewhere(ranks: Sequence[RankMemory]) -> Iterable[str]:
    offloaded = _mean(rank.epochs[-1].elsewhere.get(MOMENTS[-1], Held()).total for rank in ranks)
    if offloaded:
        yield f"Beside the device, after a step: {size(offloaded)}"


def _epochs(ranks: Sequence[RankMemory]) -> Iterable[str]:
    count = min(len(rank.epochs) for rank in ranks)
    for number in range(count if count > 1 else 0):
        each = [rank.epochs[number] for rank in ranks]
        steps = f"{each[0].steps} optimizer step{'' if each[0].steps == 1 else 's'}"
        yield f"Epoch {each[0].number}: peak {size(_mean(epoch.peak for epoch in each))}, {steps}"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _text(grid: Table) -> str:
    """In plain characters, since it may go to a file."""
    out = io.StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(grid)
    return out.getvalue()
