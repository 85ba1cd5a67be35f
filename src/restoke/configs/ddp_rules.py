"""What DDPConfig cannot go together with, and what of it belongs to World."""

from __future__ import annotations

from collections.abc import Iterator

from restoke.configs.ddp import DDPConfig
from restoke.configs.rendezvous import Rendezvous
from restoke.errors import Problem
from restoke.facts import Facts
from restoke.spec import Spec


def ddp_rendezvous(spec: Spec) -> Rendezvous:
    """Stoke's default backend, "nccl", means the right one for the device."""
    config = spec.setting(DDPConfig)
    backend = None if config.backend == "nccl" else config.backend
    return Rendezvous(backend, config.init_method, config.local_rank)


def ddp_problems(spec: Spec, facts: Facts) -> Iterator[Problem]:
    """What torch's DDP would answer with an error, a hang, or nothing at all."""
    config = spec.setting(DDPConfig)
    if config.convert_to_sync_batch_norm and spec.device == "cpu":
        why = "torch's SyncBatchNorm works on GPUs only"
        yield Problem("DDPConfig.convert_to_sync_batch_norm", True, why, "device=cuda, or leave it off")
    if config.backend not in ("nccl", *facts.backends):
        why = "this torch was built without it"
        yield Problem("DDPConfig.backend", config.backend, why, f"one of: {', '.join(facts.backends)}")
    if config.static_graph and config.no_sync and spec.accumulate > 1:
        why = "a static graph must reduce gradients in every backward, so no_sync cannot be obeyed"
        yield Problem("DDPConfig.static_graph", True, why, "no_sync=False, or accumulate=1")
    if config.static_graph and config.find_unused_parameters:
        why = "a static graph finds unused parameters by itself"
        yield Problem("DDPConfig.find_unused_parameters", True, why, "leave it off")
