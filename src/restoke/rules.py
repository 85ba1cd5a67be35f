"""The rules that hold for every strategy: each looks at one axis and yields what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from restoke.errors import Problem, nearest
from restoke.facts import DEVICES, installed
from restoke.rows import Case
from restoke.rules_passes import PASS_RULES, supporting
from restoke.spec import Spec


def strategy(spec: Spec, case: Case) -> Iterator[Problem]:
    if case.row.refused:
        yield Problem("strategy", spec.strategy, case.row.refused, case.row.instead)
    missing = [module for module in case.row.needs if not installed(module)]
    if missing:
        how = f"pip install 'restoke[{case.row.extra}]'" if case.row.extra else f"pip install {' '.join(missing)}"
        yield Problem("strategy", spec.strategy, f"{', '.join(missing)} is not installed", how)


def precision(spec: Spec, case: Case) -> Iterator[Problem]:
    found = case.precisions.get(spec.precision)
    usable = [name for name, other in case.precisions.items() if not other.refused]
    if found is None:
        yield Problem("precision", spec.precision, "there is no such precision", nearest(spec.precision, usable))
    elif found.refused:
        yield Problem("precision", spec.precision, found.refused, f"precision={found.instead}")
    elif missing := [module for module in found.needs if not installed(module)]:
        how = f"pip install 'restoke[{found.extra}]'"
        yield Problem("precision", spec.precision, f"{', '.join(missing)} is not installed", how)
    elif not case.row.refused and spec.precision not in case.row.precisions:
        yield Problem(
            "precision", spec.precision, f"{case.row.name} does not support it", f"one of: {', '.join(case.row.precisions)}"
        )
    elif spec.device in DEVICES and spec.device not in found.devices:
        yield Problem(
            "precision", spec.precision, f"it does not exist on {spec.device}", f"device={' or '.join(found.devices)}, or fp32"
        )
    elif spec.device == "cuda" and case.facts.capability is not None and case.facts.capability < found.capability:
        have, need = (".".join(map(str, pair)) for pair in (case.facts.capability, found.capability))
        yield Problem(
            "precision", spec.precision, f"this GPU has compute capability {have}, not {need}", "precision=fp16 or fp32"
        )


def device(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.device not in DEVICES:
        yield Problem("device", spec.device, "there is no such device", f"one of: {', '.join(DEVICES)}")
    elif spec.device not in case.facts.devices:
        yield Problem("device", spec.device, "torch sees none here", f"device={' or '.join(case.facts.devices)}")
    elif not case.row.refused and spec.device not in case.row.devices:
        here = " or ".join(name for name in case.row.devices if name in case.facts.devices)
        instead = f"device={here}" if here else f"a machine with {' or '.join(case.row.devices)}"
        yield Problem("device", spec.device, f"{case.row.name} does not run on it", instead)
    elif spec.device != "cpu" and case.facts.per_node > case.facts.accelerators > 0:
        why = f"{case.facts.per_node} processes were started for {case.facts.accelerators} of them"
        yield Problem("device", spec.device, why, f"--processes {case.facts.accelerators}, or device=cpu")


def processes(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.processes is not None and spec.processes < 1:
        yield Problem("processes", spec.processes, "a job has at least one process", "processes=1 or more")
    elif spec.processes is not None and spec.processes != case.facts.processes:
        why = f"{case.facts.processes} {'was' if case.facts.processes == 1 else 'were'} started"
        yield Problem("processes", spec.processes, why, f"restoke launch --processes {spec.processes}, or leave it out")
    if case.row.refused:
        return
    if case.row.processes == "one" and case.facts.processes > 1:
        instead = supporting(case, lambda other: other.processes == "many", "start one process")
        yield Problem("strategy", spec.strategy, f"it runs in one process; {case.facts.processes} were started", instead)
    if case.row.processes == "many" and not case.facts.launched:
        instead = "restoke launch --processes N script.py (or torchrun), or strategy=single"
        yield Problem("strategy", spec.strategy, "it needs processes that a launcher started, and none did", instead)


def accumulate(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.accumulate < 1:
        yield Problem("accumulate", spec.accumulate, "an optimizer step needs at least one micro-batch", "accumulate=1 or more")


def seed(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.seed is not None and not 0 <= spec.seed < 2**32:
        yield Problem("seed", spec.seed, "generators take 32 bits", "a seed from 0 to 4294967295")


RULES = (strategy, precision, device, processes, accumulate, seed, *PASS_RULES)
