"""The points of the table that the contract suite tries: a covering array of each row's axes, or their whole product."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

from attrs import evolve, frozen

from restoke.blocks import find_blocks
from restoke.configs import AMPConfig, TensorConfig
from restoke.facts import Facts
from restoke.rows import Row
from restoke.rules_passes import REMATS
from restoke.spec import Spec
from restoke.table import PRECISIONS, problems, rows, usable
from restoke.testing.examples import EXAMPLES

ACCUMULATE = (1, 4)
CLIP = (None, "norm:0.5", "value:0.02")
STEPS = 20  # that parity in float32 is promised for
FEW_STEPS = 8  # of a low precision, whose rounding would hide what only later steps show


@frozen
class Case:
    """A spec, the example that it trains, how many processes do, and for how many steps it is compared."""

    spec: Spec
    example: str
    processes: int
    steps: int = STEPS

    def __str__(self) -> str:
        clip = type(self.spec.clip).__name__ if self.spec.clip else "none"
        axes = {name: getattr(self.spec, name) for name in ("offload", "remat", "compile")}
        with_ = "".join(f"-{name}-{value}" for name, value in axes.items() if value != "none")
        with_ += f"-tensor-{self.spec.tensor}" if self.spec.tensor > 1 else ""
        what = f"{self.spec.strategy}-{self.spec.precision}-x{self.spec.accumulate}-{clip}{with_}"
        return f"{what}-{self.example}-on-{self.processes}"

    @property
    def row(self) -> Row:
        return rows()[self.spec.strategy]


def cases(device: str = "cpu", full: bool = False, only: str | None = None, windows: bool = False) -> list[Case]:
    """Cases of every usable row (or of `only` one): every pair of axis values, or with `full` every combination.

    The rows come from the table, those of other installed packages among them. `windows`: of those cases alone whose windows
    may end short, every pair of the other axes' values.
    """
    names = [only] if only is not None else usable()
    return [case for name in names for case in _cases(rows()[name], device, full, windows)]


def _cases(row: Row, device: str, full: bool, windows: bool) -> list[Case]:
    if device not in row.devices:
        return []
    axes: dict[str, list[Any]] = {
        "processes": list(tried(row)),
        "precision": [
            name
            for name in row.precisions
            if PRECISIONS[name].means.linear is None  # the examples are too small for it: tests/passes/test_float8.py
            and not _problems(Spec(strategy=row.name, device=device, precision=name), row)
        ],
        "accumulate": list(ACCUMULATE),
        "clip": list(CLIP),
        "offload": list(row.offload),
        "example": _examples(),
    }
    if windows:
        exact = [example for example in axes["example"] if EXAMPLES[example[0]].per_sample]
        axes |= {"precision": ["fp32"], "accumulate": [max(ACCUMULATE)], "example": exact}
    combinations = itertools.product(*axes.values()) if full else _covering(list(axes.values()))
    made = [dict(zip(axes, combination, strict=True)) for combination in combinations]
    found = sorted((_case(row, device, **point) for point in made), key=str) + _compiled(row, device) + _cut(row, axes, full)
    return [evolve(case, steps=FEW_STEPS) if case.spec.precision != "fp32" and not full else case for case in found]


@cache
def _with_blocks() -> list[str]:
    return [name for name, example in EXAMPLES.items() if find_blocks(example.build())]


def _examples() -> list[tuple[str, str]]:
    """Each with the ways to recompute that it can be tried with."""
    return [(name, remat) for name in EXAMPLES for remat in (REMATS if name in _with_blocks() else ("none",))]


def _compiled(row: Row, device: str) -> list[Case]:
    """One case of a row, since compiling takes longer than all else."""
    if "blocks" not in row.compiles or not _with_blocks():
        return []
    processes = min(tried(row), key=lambda number: abs(number - 2))
    return [Case(Spec(strategy=row.name, device=device, compile="blocks", remat="blocks"), _with_blocks()[0], processes)]


def _cut(row: Row, axes: dict[str, list[Any]], full: bool) -> list[Case]:
    """Cases whose layers are sharded over two ranks: alone, and on a mesh with shards or copies of data."""
    planned = [name for name, example in EXAMPLES.items() if example.plan]
    if not row.tensor or not planned:
        return []
    least = max(2, tried(row)[0])
    ways: dict[str, list[Any]] = {**axes, "processes": sorted({least if row.tried[0] == 1 else 2 * least, 4})}
    ways["example"] = [(name, remat) for name in planned for remat in REMATS]
    combinations = itertools.product(*ways.values()) if full else _covering(list(ways.values()), strength=1)
    made = [_case(row, "cpu", **dict(zip(ways, combination, strict=True))) for combination in combinations]
    made.append(_case(row, "cpu", 4, (planned[0], "blocks"), precision="fp32", accumulate=4, clip=CLIP[1], offload="none"))
    plans = {name: TensorConfig(plan=dict(EXAMPLES[name].plan)) for name in planned}
    specs = [evolve(case.spec, tensor=2, settings=(*case.spec.settings, plans[case.example])) for case in made]
    return [evolve(case, spec=spec) for case, spec in zip(made, specs, strict=True)]


def tried(row: Row) -> tuple[int, ...]:
    """The numbers of processes that the row is tried in."""
    return row.tried or ((1, 2) if row.processes == "many" else (1,))


def _case(row: Row, device: str, processes: int, example: tuple[str, str], **point: Any) -> Case:
    # a scale that none of the examples overflows at: a step that is skipped trains otherwise than float32 does
    scale = (AMPConfig(init_scale=1024.0),) if PRECISIONS[point["precision"]].means.scaled else ()
    name, remat = example
    return Case(Spec(strategy=row.name, device=device, settings=scale, remat=remat, **point), name, processes)


def _problems(spec: Spec, row: Row) -> bool:
    most = max(tried(row))
    here = Facts(processes=most, launched=row.processes == "many", per_node=most, devices=("cpu", spec.device))
    return bool(problems(spec, here))


def _covering(axes: list[list[Any]], strength: int = 2) -> list[tuple[Any, ...]]:
    import covertable  # type: ignore[import-untyped]

    wide = [list(range(len(axis))) for axis in axes]
    return [tuple(axis[i] for axis, i in zip(axes, row, strict=True)) for row in covertable.make(wide, strength=strength)]
