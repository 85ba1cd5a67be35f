"""Paired timing: contenders take turns in one process, and each turn is compared with the reference's of the same round."""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import frozen

Step = Callable[[], object]
Times = dict[str, list[float]]  # seconds of CPU per step, one entry a round, by contender


@frozen
class Ratio:
    """The median over rounds of a contender's time by the reference's, and the interval that holds it with 95 % confidence.

    `seconds` is the contender's own median per step.
    """

    seconds: float
    ratio: float
    low: float
    high: float


def interleave(
    steps: Mapping[str, Step],
    rounds: int,
    per_turn: int,
    warm_up: int = 50,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.process_time,
) -> Times:
    """Run every contender `per_turn` times in each round, in an order that changes from round to round, alike in every process.

    `before` runs untimed ahead of each turn. The garbage collector rests meanwhile: whose turn it falls in is chance.
    """
    for step in steps.values():
        for _ in range(warm_up):
            step()
    times: Times = {name: [] for name in steps}
    order, shuffle = list(steps), random.Random(0).shuffle
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                before()
                times[name].append(_turn(steps[name], per_turn, clock))
    finally:
        gc.enable()
    return times


def _turn(step: Step, per_turn: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(per_turn):
        step()
    return (clock() - start) / per_turn


def pooled(ranks: Sequence[Times]) -> Times:
    """The mean over ranks of each turn."""
    return {name: [statistics.fmean(turn) for turn in zip(*(times[name] for times in ranks), strict=True)] for name in ranks[0]}


def compare(times: Times, reference: str) -> dict[str, Ratio]:
    """Each contender against the reference, round by round."""
    return {name: _ratio(own, times[reference]) for name, own in times.items()}


def _ratio(own: Sequence[float], reference: Sequence[float]) -> Ratio:
    ratios = sorted(a / b for a, b in zip(own, reference, strict=True))
    # order statistics: the median lies between these two of the sorted values, whatever the distribution
    reach = 0.98 * math.sqrt(len(ratios))
    low, high = math.floor((len(ratios) - 1) / 2 - reach), math.ceil((len(ratios) - 1) / 2 + reach)
    return Ratio(statistics.median(own), statistics.median(ratios), ratios[max(low, 0)], ratios[min(high, len(ratios) - 1)])


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
