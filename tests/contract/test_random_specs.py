"""Random declarations: whatever `problems` accepts really runs, and trains every rank alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from restoke.configs import AMPConfig, DDPConfig
from restoke.facts import Facts
from restoke.spec import Spec
from restoke.table import PRECISIONS, problems, rows
from restoke.testing.cases import Case
from restoke.testing.examples import EXAMPLES
from restoke.testing.training import by_session
from tests import ranks

WANTED = 60


def random_spec(rng: random.Random) -> Spec:
    """Any point of the space, also impossible ones."""
    ddp = DDPConfig(
        bucket_cap_mb=rng.choice([1, 25]),
        broadcast_buffers=rng.random() < 0.5,
        find_unused_parameters=rng.random() < 0.3,
        gradient_as_bucket_view=rng.random() < 0.5,
        no_sync=rng.random() < 0.7,
        static_graph=rng.random() < 0.2,
        convert_to_sync_batch_norm=rng.random() < 0.1,
        comm_hook=rng.choice([None, None, None, "bf16", "fp16"]),
    )
    return Spec(
        strategy=rng.choice(["auto", *rows()]),
        device=rng.choice(["auto", "cpu", "cpu", "cpu", "cuda"]),
        precision=rng.choice([name for name, row in PRECISIONS.items() if row.means.linear is None]),  # the examples are small
        accumulate=rng.choice([0, 1, 2, 3, 4]),
        clip=rng.choice([None, 0.5, "value:0.1", {"max_norm": 1.0, "norm_type": "inf"}, {"max_norm": 2.0, "norm_type": 1.0}]),
        seed=rng.choice([None, 0, 7, 2**32]),
        processes=rng.choice([None, None, 1, 2]),
        offload=rng.choice(["none", "none", "cpu", "disk"]),
        remat=rng.choice(["none", "none", "blocks", "selective"]),
        optimizer=rng.choice(["given", "given", "foreach", "in-backward"]),  # fused: whether it fits depends on the optimizer
        ema=rng.choice([None, None, 0.9, 1.0]),
        settings=[ddp, AMPConfig(init_scale=rng.choice([1.0, 2.0**10]), growth_interval=rng.choice([1, 2000]))],
    )


def accepted() -> list[Case]:
    """The first accepted points of a seeded stream, each with a world that it goes with."""
    rng, found = random.Random(2), []
    while len(found) < WANTED:
        spec, processes, example = random_spec(rng), rng.choice([1, 2]), rng.choice(sorted(EXAMPLES))
        example = "blocks" if spec.remat != "none" else example  # the others have none
        if not problems(spec, Facts(processes=processes, launched=True, per_node=processes)):
            found.append(Case(spec, example, processes))
    return found


CASES = accepted()


def run_all(cases: list[Case]) -> list[tuple[dict[str, Any], str]]:
    """Two steps of each, one after another in the same processes."""
    return [(by_session(case, steps=2), str(case)) for case in cases]


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_accepted_runs(processes: int) -> None:
    here = [case for case in CASES if case.processes == processes]
    assert len(here) >= WANTED // 4
    results = ranks.run(processes, run_all, here)
    for each in zip(*results, strict=True):
        for values, name in each:
            assert np.isfinite(values["losses"]).all(), name
            for key, value in each[0][0].items():
                apart = key == "losses" or "running" in key
                assert apart or np.array_equal(values[key], value), f"{name}: {key} differs between ranks"


def test_the_sample_is_a_varied_one() -> None:
    assert len({str(case) for case in CASES}) > WANTED // 2
    assert {case.row.name for case in CASES if case.spec.strategy != "auto"} >= {"single", "ddp", "zero1", "fsdp"}
