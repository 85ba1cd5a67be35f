"""What is declared becomes a job, or every reason why not, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from restoke.errors import LaunchError, RestokeError, SpecError
from restoke.facts import Facts
from restoke.launch import plan as planning
from restoke.launch.job import Nodes, Target
from restoke.launch.plan import overlay, plan
from restoke.table import rows

CPU = Facts()
GPUS = Facts(devices=("cuda", "cpu"), accelerators=4, capability=(9, 0), backends=("gloo", "nccl"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Says which machine this is; in the working directory there is a `train.py`."""
    (tmp_path / "train.py").touch()
    (tmp_path / "package").mkdir()
    monkeypatch.chdir(tmp_path)

    def here(facts: Facts) -> None:
        monkeypatch.setattr(planning, "machine", lambda device, torch_comes: CPU if device == "cpu" else facts)

    here(CPU)
    return here


def planned(nodes: Nodes | None = None, **outside: Any) -> tuple[str, str, int, bool]:
    job = plan(Target("train.py"), outside, nodes=nodes)
    assert job.outside == outside
    return job.spec.strategy, job.spec.device, job.processes, job.agent


@pytest.mark.parametrize(
    ("outside", "cpu", "gpus"),
    [
        ({}, ("single", "cpu", 1, False), ("ddp", "cuda", 4, True)),
        ({"device": "cpu"}, ("single", "cpu", 1, False), ("single", "cpu", 1, False)),
        ({"strategy": "single"}, ("single", "cpu", 1, False), ("single", "cuda", 1, False)),
        ({"processes": 1}, ("single", "cpu", 1, False), ("single", "cuda", 1, False)),
        ({"processes": 2}, ("ddp", "cpu", 2, True), ("ddp", "cuda", 2, True)),
        ({"processes": "2", "strategy": "ddp"}, ("ddp", "cpu", 2, True), ("ddp", "cuda", 2, True)),
        ({"strategy": "ddp", "processes": 1}, ("ddp", "cpu", 1, True), ("ddp", "cuda", 1, True)),
        ({"strategy": "ddp"}, None, ("ddp", "cuda", 4, True)),
        ({"strategy": "ddp", "device": "cpu"}, None, None),
        ({"processes": 5, "device": "cuda"}, None, None),
        ({"processes": 0}, None, None),
        ({"strategy": "dpd"}, None, None),
        ({"strategy": "single", "processes": 2}, None, None),
        ({"precision": "bf15"}, None, None),
    ],
)
def test_processes_are_as_many_as_declared_or_as_the_machine_has(
    outside: dict[str, Any], cpu: Any, gpus: Any, here: Any
) -> None:
    for facts, expected in ((CPU, cpu), (GPUS, gpus)):
        here(facts)
        if expected is None:
            with pytest.raises(RestokeError):
                planned(**outside)
        else:
            assert planned(**outside) == expected


def test_several_processes_without_an_accelerator_must_be_counted_by_the_user(here: Any) -> None:
    with pytest.raises(LaunchError, match=r"processes=None: ddp .*Instead: --processes N"):
        planned(strategy="ddp")


def test_every_problem_is_named_at_once(here: Any) -> None:
    with pytest.raises(SpecError) as refused:
        planned(strategy="ddp", processes=2, precision="bf15", accumulate=0, device="cuda")
    assert {problem.axis for problem in refused.value.problems} >= {"precision", "accumulate", "device"}


def test_a_refused_strategy_is_refused_for_its_own_reason(here: Any) -> None:
    refused = [name for name, row in rows().items() if row.refused and row.processes == "many"]
    for name in refused:
        with pytest.raises(SpecError, match="strategy="):
            planned(strategy=name)


def test_processes_are_spread_evenly_over_nodes(here: Any) -> None:
    two = Nodes(count=2, rank=1, endpoint="host:29500")
    assert planned(two, processes=4) == ("ddp", "cpu", 4, True)
    assert plan(Target("train.py"), {"processes": 4}, nodes=two).per_node == 2
    with pytest.raises(LaunchError, match="evenly"):
        planned(two, processes=3)
    with pytest.raises(LaunchError, match="there are 2 nodes"):
        planned(two)
    with pytest.raises(SpecError, match="one process"):
        planned(two, strategy="single")
    here(GPUS)
    assert planned(two) == ("ddp", "cuda", 8, True)


@pytest.mark.parametrize(
    ("nodes", "axis"),
    [
        (Nodes(count=0), "nodes"),
        (Nodes(count=2, rank=2, endpoint="a:1"), "node-rank"),
        (Nodes(count=2, rank=-1, endpoint="a:1"), "node-rank"),
        (Nodes(count=2), "rdzv-endpoint"),
        (Nodes(count=2, endpoint="host"), "rdzv-endpoint"),
        (Nodes(count=2, endpoint=":1"), "rdzv-endpoint"),
    ],
)
def test_nodes_that_could_not_meet_are_refused(nodes: Nodes, axis: str, here: Any) -> None:
    with pytest.raises(LaunchError) as refused:
        planned(nodes, processes=2)
    assert refused.value.problems[0].axis == axis


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Target("trian.py"), "did you mean 'train.py'"),
        (Target("nowhere/x.py"), "no such file"),
        (Target("package"), "it is a directory"),
        (Target("x" * 300 + ".py"), "it cannot be read"),
        (Target("no_such_module.part", is_module=True), "there is no module 'no_such_module'"),
    ],
)
def test_a_target_that_is_not_there_is_refused(target: Target, said: str, here: Any) -> None:
    with pytest.raises(LaunchError) as refused:
        plan(target, {})
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["train", "json.tool", "package"])
def test_a_module_is_found_where_python_would_find_it(name: str, here: Any) -> None:
    assert plan(Target(name, is_module=True), {}).target.words == ["-m", name]


def test_an_unknown_face_is_refused_with_the_nearest(here: Any) -> None:
    assert plan(Target("train.py"), {}, facade="stoke").facade == "stoke"
    with pytest.raises(LaunchError, match="did you mean 'stoke'"):
        plan(Target("train.py"), {}, facade="stokes")


def test_later_mappings_win_and_settings_are_merged_field_by_field() -> None:
    file = {
        "precision": "fp16",
        "clip": {"max_norm": 1},
        "settings": {"ddp": {"no_sync": True, "bucket_cap_mb": 1}, "amp": None},
    }
    flags = {"clip": {"clip_value": 2}, "settings": {"ddp": {"bucket_cap_mb": 2}, "amp": {"init_scale": 2.0}}}
    merged = {"ddp": {"no_sync": True, "bucket_cap_mb": 2}, "amp": {"init_scale": 2.0}}
    assert overlay(file, {}, flags) == {"precision": "fp16", "clip": {"clip_value": 2}, "settings": merged}
    assert overlay({}, {"settings": {"ddp": None}}) == {"settings": {"ddp": None}}


def test_what_is_no_mapping_is_left_for_the_spec_to_refuse(here: Any) -> None:
    assert overlay({"settings": [1]}, {"settings": {"ddp": {}}}) == {"settings": {"ddp": {}}}
    with pytest.raises(SpecError):
        planned(settings="ddp")


def test_the_variable_for_the_ranks_holds_exactly_what_was_declared(here: Any) -> None:
    job = plan(Target("train.py"), {"precision": "bf16", "settings": {"ddp": {"bucket_cap_mb": 3}}})
    assert job.environment == {"RESTOKE_SPEC": '{"precision": "bf16", "settings": {"ddp": {"bucket_cap_mb": 3}}}'}
    assert attrs.evolve(job, outside={}).environment == {}
