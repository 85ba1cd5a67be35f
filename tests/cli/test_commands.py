"""Command lines, from their words to a job, a printed spec, or one message without a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from restoke._version import __version__
from restoke.cli import main
from restoke.launch import local
from restoke.launch.job import Job

Refused = Callable[..., str]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Job]]:
    """What `launch` would have started, in a folder with a `train.py`."""
    started: list[Job] = []
    monkeypatch.setattr(local, "start", lambda job: started.append(job) or 7)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return started


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], jobs: list[Job]) -> Refused:
    """The message of a command line that is refused."""

    def refused(*words: str) -> str:
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert (out, jobs) == ("", [])
        assert err.startswith("restoke: ")
        assert "Traceback" not in err
        return err

    return refused


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["train.py"], ["train.py"]),
        (["train.py", "--seed", "3", "--help"], ["train.py", "--seed", "3", "--help"]),
        (["train.py", "-m", "x", "--", "y"], ["train.py", "-m", "x", "--", "y"]),
        (["--seed", "3", "train.py", "--seed", "4"], ["train.py", "--seed", "4"]),
        (["--seed=3", "train.py", "-h"], ["train.py", "-h"]),
        (["--seed", "3", "--", "train.py", "--seed", "4"], ["train.py", "--seed", "4"]),
        (["-m", "train", "--seed", "4"], ["-m", "train", "--seed", "4"]),
        (["--seed", "3", "-m", "train"], ["-m", "train"]),
        (["--set", "ddp.no_sync=true", "--set=ddp.bucket_cap_mb=1", "train.py"], ["train.py"]),
    ],
)
def test_what_follows_the_script_is_the_scripts_own(words: list[str], target: list[str], jobs: list[Job]) -> None:
    assert main(["launch", *words]) == 7
    assert jobs[0].target.words == target


def test_flags_win_over_the_environment_and_that_over_the_file(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("spec.yaml").write_text(
        "precision: fp16\naccumulate: 2\nseed: 1\nsettings: {ddp: {no_sync: false, bucket_cap_mb: 1}}\n"
    )
    monkeypatch.setenv("RESTOKE_SPEC", '{"accumulate": 3, "seed": 2}')
    main(["launch", "--spec", "spec.yaml", "--seed", "3", "--processes", "2", "--set", "ddp.bucket_cap_mb=5", "train.py"])
    (job,) = jobs
    settings = {"ddp": {"no_sync": False, "bucket_cap_mb": 5}}
    assert job.outside == {"precision": "fp16", "accumulate": 3, "seed": 3, "processes": 2, "settings": settings}
    assert (job.spec.strategy, job.processes, job.agent) == ("ddp", 2, True)


def test_without_a_declaration_nothing_is_declared(jobs: list[Job]) -> None:
    main(["launch", "train.py"])
    assert (jobs[0].outside, jobs[0].environment, jobs[0].agent) == ({}, {}, False)


def test_the_rest_of_the_flags_reaches_the_job(jobs: list[Job]) -> None:
    where = ["--nodes", "2", "--node-rank", "1", "--rdzv-endpoint", "host:1", "--log-dir", "here"]
    main(["launch", *where, "--as", "stoke", "--processes", "4", "train.py"])
    (job,) = jobs
    assert (job.nodes.count, job.nodes.rank, job.nodes.endpoint) == (2, 1, "host:1")
    assert (job.logs, job.facade, job.per_node) == (Path("here"), "stoke", 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launch"], "a script to run is missing"),
        (["launch", "-m"], "a module to run is missing"),
        (["launch", "trian.py"], "did you mean 'train.py'"),
        (["launch", "--presicion", "bf16", "train.py"], "Did you mean --precision?"),
        (["launch", "--presicion=bf16", "train.py"], "Did you mean --precision?"),
        (["launch", "--precision"], "--precision requires an argument"),
        (["launch", "--precision", "bf61", "train.py"], "did you mean 'bf16'"),
        (["launch", "--strategy", "dpd", "train.py"], "did you mean 'ddp'"),
        (["launch", "--accumulate", "0", "train.py"], "accumulate=0"),
        (["launch", "--set", "ddp.bucket_cap_m=1", "train.py"], "did you mean 'bucket_cap_mb'"),
        (["launch", "--set", "ddq.bucket_cap_mb=1", "train.py"], "did you mean 'ddp'"),
        (["launch", "--nodes", "two", "train.py"], "--nodes"),
        (["launch", "--as", "stokes", "train.py"], "did you mean 'stoke'"),
        (["launch", "--spec", "nowhere.yaml", "train.py"], "cannot be read"),
        (["launch", "--spec", "train.toml", "train.py"], "cannot be read"),
        (["launch", "--strategy", "single", "--processes", "2", "train.py"], "it runs in one process; 2 were started"),
        (["check", "--strategy", "ddp"], "--processes N"),
        (["check", "train.py"], "train.py"),
        (["lanch", "train.py"], 'Did you mean "launch"?'),
        (["--verbose"], "--verbose"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(words: list[str], said: str, refused: Refused) -> None:
    assert said in refused(*words)


def test_a_spec_file_is_named_where_its_setting_is_wrong(refused: Refused) -> None:
    Path("spec.yaml").write_text("presicion: bf16\n")
    said = refused("launch", "--spec", "spec.yaml", "train.py")
    assert "spec.yaml has a setting that does not exist" in said
    assert "did you mean 'precision'" in said


def test_every_problem_is_in_the_message(refused: Refused) -> None:
    said = refused("check", "--precision", "bf15", "--accumulate", "0", "--device", "cuda", "--strategy", "single")
    assert all(f"{axis}=" in said for axis in ("precision", "accumulate", "device"))


def test_check_prints_a_spec_that_reads_back_as_what_would_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--strategy", "ddp", "--processes", "2", "--clip", "1.0", "--set", "ddp.bucket_cap_mb=3"]
    assert main(["check", *words]) == 0
    first = capsys.readouterr().out
    shown: dict[str, Any] = yaml.safe_load(first)
    assert (shown["strategy"], shown["device"], shown["processes"], shown["precision"]) == ("ddp", "cpu", 2, "fp32")
    assert shown["settings"] == {"ddp": {"bucket_cap_mb": 3}}
    (tmp_path / "spec.yaml").write_text(first)
    assert main(["check", "--spec", str(tmp_path / "spec.yaml")]) == 0
    assert capsys.readouterr().out == first


def test_check_shows_what_auto_means_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restoke.launch.machine.accelerated", lambda: False)
    assert main(["check"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["strategy"], shown["device"], shown["processes"], shown["clip"]) == ("single", "cpu", 1, None)


def test_help_shows_every_axis_with_its_words_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import attrs

    from restoke.spec import Spec

    monkeypatch.setenv("COLUMNS", "300")
    assert main(["launch", "--help"]) == 0
    shown = capsys.readouterr().out
    for axis in attrs.fields(Spec):
        assert axis.name == "settings" or f"--{axis.name}" in shown
        assert axis.name == "settings" or axis.metadata["help"] in shown
    assert "[default: fp32]" in shown
    assert "script.py ARGS... | -m module ARGS..." in shown


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
