"""What FSDPConfig cannot go together with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from restoke.configs import SETTINGS
from restoke.errors import Problem
from restoke.facts import Facts
from restoke.spec import Spec


def _given(spec: Spec) -> Any:
    return next((item for item in spec.settings if SETTINGS.key_of(type(item)) == "fsdp"), None)


def _replicas(spec: Spec) -> int | None:
    given = _given(spec)
    return given.replicas if given is not None else None


def batch_norm(spec: Spec, facts: Facts) -> Iterator[Problem]:
    """What torch answers with an error in the middle of a forward."""
    given = _given(spec)
    if given is not None and given.convert_to_sync_batch_norm and spec.device == "cpu":
        why = "torch's SyncBatchNorm works on GPUs only"
        yield Problem("FSDPConfig.convert_to_sync_batch_norm", True, why, "device=cuda, or leave it off")


def one_copy(spec: Spec, facts: Facts) -> Iterator[Problem]:
    """For strategies that hold one copy of the model over all ranks."""
    if _replicas(spec) not in (None, 1):
        why = f"{spec.strategy} holds one copy over all ranks"
        yield Problem("FSDPConfig.replicas", _replicas(spec), why, "strategy=hsdp, or leave it out")


def replicas(spec: Spec, processes: int, per_node: int) -> int:
    """How many copies: as set, else one per machine, or two on a single machine."""
    return _replicas(spec) or max(2, processes // max(per_node, 1))


def copies(spec: Spec, facts: Facts) -> Iterator[Problem]:
    """For strategies that hold several."""
    count = replicas(spec, facts.processes, facts.per_node)
    groups = facts.processes // max(spec.tensor, 1)
    if groups % count:
        why = f"{groups} data-parallel ranks cannot be divided into {count} copies"
        yield Problem("FSDPConfig.replicas", count, why, f"a divisor of {groups}, or --processes {count * spec.tensor}")
