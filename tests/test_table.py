"""The table and its rules: every reason why a spec cannot run is found, and each names what to do instead."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from restoke import plugins as plugins_module
from restoke import table
from restoke.configs import SETTINGS, DDPConfig
from restoke.errors import SpecError
from restoke.facts import DEVICES, Facts
from restoke.rows import Row
from restoke.spec import Spec
from restoke.table import PRECISIONS, check, problems, resolve, rows, usable

LAPTOP = Facts()
TWO = Facts(processes=2, launched=True, per_node=2)
GPUS = Facts(
    processes=2,
    launched=True,
    per_node=2,
    devices=("cuda", "cpu"),
    accelerators=2,
    capability=(9, 0),
    backends=("gloo", "nccl"),
)


@pytest.mark.parametrize(
    ("spec", "facts", "axis", "instead"),
    [
        (Spec(strategy="dpp"), LAPTOP, "strategy", "did you mean 'ddp'"),
        (Spec(precision="bf61"), LAPTOP, "precision", "did you mean 'bf16'"),
        (Spec(device="cuda"), LAPTOP, "device", "device=cpu"),
        (Spec(device="gpu"), LAPTOP, "device", "one of: cuda"),
        (Spec(precision="tf32"), LAPTOP, "precision", "device=cuda"),
        (Spec(precision="fp8", device="mps"), Facts(devices=("mps", "cpu"), accelerators=1), "precision", "cpu or cuda"),
        (Spec(precision="apex-O1"), LAPTOP, "precision", "fp16"),
        (Spec(accumulate=0), LAPTOP, "accumulate", "accumulate=1 or more"),
        (Spec(seed=-1), LAPTOP, "seed", "a seed from 0"),
        (Spec(processes=0), LAPTOP, "processes", "processes=1 or more"),
        (Spec(processes=4), TWO, "processes", "restoke launch --processes 4"),
        (Spec(strategy="ddp"), LAPTOP, "strategy", "restoke launch --processes N"),
        (Spec(strategy="single"), TWO, "strategy", "strategy=ddp"),
        (
            Spec(device="cuda"),
            Facts(processes=3, launched=True, per_node=3, devices=("cuda", "cpu"), accelerators=2),
            "device",
            "--processes 2",
        ),
        (
            Spec(precision="bf16", device="cuda"),
            Facts(devices=("cuda", "cpu"), accelerators=1, capability=(7, 0)),
            "precision",
            "fp16",
        ),
        (Spec(strategy="ddp", settings=[DDPConfig(convert_to_sync_batch_norm=True)]), TWO, "sync_batch_norm", "device=cuda"),
        (Spec(strategy="ddp", settings=[DDPConfig(backend="mpi")]), TWO, "backend", "gloo"),
        (Spec(strategy="ddp", accumulate=2, settings=[DDPConfig(static_graph=True)]), TWO, "static_graph", "no_sync=False"),
    ],
)
def test_what_cannot_run_is_refused_with_what_to_do(spec: Spec, facts: Facts, axis: str, instead: str) -> None:
    (problem,) = problems(spec, facts)
    assert axis in problem.axis
    assert instead in problem.instead
    assert problem.why
    with pytest.raises(SpecError):
        check(spec, facts)


def test_every_problem_is_found_not_only_the_first() -> None:
    found = problems(Spec(strategy="nope", precision="nope", device="nope", accumulate=0, seed=-1, processes=3), LAPTOP)
    assert {problem.axis for problem in found} == {"strategy", "precision", "device", "accumulate", "seed", "processes"}


def test_auto_means_what_is_best_here() -> None:
    assert resolve(Spec(), LAPTOP).strategy == "single"
    assert resolve(Spec(), TWO).strategy == "ddp"
    assert (resolve(Spec(), GPUS).device, resolve(Spec(), TWO).device) == ("cuda", "cpu")
    mac = Facts(processes=2, launched=True, devices=("mps", "cpu"))
    assert resolve(Spec(strategy="ddp"), mac).device == "cpu", "ddp does not run on mps"


def test_rows_that_do_not_run_yet_refuse_and_say_what_does() -> None:
    for row in rows().values():
        if row.refused:
            (problem,) = [p for p in problems(Spec(strategy=row.name), TWO) if p.axis == "strategy"]
            assert problem.why == row.refused
            assert problem.instead


def test_every_row_is_whole() -> None:
    for name, row in rows().items():
        assert name == row.name
        assert row.refused or row.summary
        assert row.refused or callable(row.load())
        assert row.processes in ("one", "many")
        assert not row.settings or row.settings in SETTINGS
        assert set(row.precisions) <= set(PRECISIONS)
        assert set(row.devices) <= set(DEVICES)


def test_an_engine_that_is_not_installed_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(name="engine", where="x", needs=("no_such_engine_module",), extra="engine", processes="one")
    monkeypatch.setattr(table, "rows", lambda: {"engine": row})
    (problem,) = problems(Spec(strategy="engine"), LAPTOP)
    assert problem.instead == "pip install 'restoke[engine]'"


def test_a_strategy_for_devices_that_are_not_here_says_which_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(name="engine", where="x", devices=("cuda", "xpu"), processes="one")
    monkeypatch.setattr(table, "rows", lambda: {"engine": row})
    (problem,) = problems(Spec(strategy="engine", device="cpu"), LAPTOP)
    assert problem.instead == "a machine with cuda or xpu"


@frozen
class _Distribution:
    name: str


@frozen
class _Settings:
    depth: int = 1


MINE = Row(name="mine", where="nowhere", settings_class=_Settings)
TAKEN = Row(name="ddp", where="nowhere")
NOT_A_ROW = 3


@pytest.fixture
def with_plugins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs entry points into the table for one test."""

    def install(**points: str) -> dict[str, Row]:
        found = [EntryPoint(name, value, plugins_module.GROUP) for name, value in points.items()]
        monkeypatch.setattr(plugins_module, "entry_points", lambda group: found)
        _forget()
        return rows()

    yield install
    monkeypatch.undo()
    _forget()
    SETTINGS.pop("mine", None)


def _forget() -> None:
    plugins_module.plugins.cache_clear()
    rows.cache_clear()


def test_a_strategy_of_another_package_appears_with_its_settings(with_plugins: Any) -> None:
    table_ = with_plugins(mine="tests.test_table:MINE")
    assert table_["mine"].where == "nowhere"
    assert "mine" in usable()
    assert Spec.of({"settings": {"mine": {"depth": 3}}}).setting(_Settings).depth == 3


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("tests.no_such_module:X", "could not be read"),
        ("tests.test_table:NOT_A_ROW", "not a restoke Row"),
        ("tests.test_table:TAKEN", "taken"),
    ],
)
def test_a_broken_package_refuses_by_itself_and_leaves_the_rest(with_plugins: Any, value: str, why: str) -> None:
    table_ = with_plugins(broken=value)
    (row,) = [row for row in table_.values() if row.package != "restoke"]
    assert why in row.refused or "could not be read" in row.refused
    assert not problems(Spec(), LAPTOP)


SPECS = st.builds(
    Spec,
    strategy=st.sampled_from(["auto", *rows(), "nope"]),
    device=st.sampled_from(["auto", *DEVICES, "tpu"]),
    precision=st.sampled_from([*PRECISIONS, "fp4"]),
    accumulate=st.integers(-1, 8),
    clip=st.sampled_from([None, "norm:1.0", "value:0.1"]),
    seed=st.none() | st.integers(-5, 2**33),
    processes=st.none() | st.integers(-1, 4),
)
FACTS = st.sampled_from([LAPTOP, TWO, GPUS, Facts(processes=1, launched=True)])


@settings(max_examples=2000, deadline=None)
@given(SPECS, FACTS)
def test_any_spec_gets_an_answer(spec: Spec, facts: Facts) -> None:
    found = problems(spec, facts)
    for problem in found:
        assert problem.axis
        assert problem.why
        assert problem.instead
        assert problem.why not in str(problem.instead)
    if not found:
        resolved = check(spec, facts)
        assert "auto" not in (resolved.strategy, resolved.device)
        assert not problems(resolved, facts)
