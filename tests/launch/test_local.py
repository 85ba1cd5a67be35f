"""The launcher says in one line under what it starts a script, where anything was declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from restoke.launch import local
from restoke.launch.job import Job, Target
from restoke.spec import Spec


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"processes": 2}, "processes=2"),
        ({"strategy": "ddp", "device": "cpu", "accumulate": 1}, "strategy=ddp, device=cpu, processes=2"),
        ({"clip": 1.0, "seed": 0}, "clip.max_norm=1.0, clip.norm_type=2.0, seed=0, processes=2"),
        ({"blocks": ["layers.*", "head"]}, "blocks=layers.*,head, processes=2"),
        ({"settings": {"ddp": {"bucket_cap_mb": 5}, "amp": {}}}, "processes=2, ddp.bucket_cap_mb=5"),
    ],
)
def test_what_differs_from_the_defaults_is_told(
    declared: Mapping[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("restoke.launch.agent.run", lambda job: 7)
    job = Job(target=Target("script.py"), spec=Spec.of(declared), processes=2, agent=True, outside=declared)
    assert local.start(job) == 7
    assert capsys.readouterr().err == f"restoke: starting {said}\n"


def test_where_nothing_was_declared_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("restoke.launch.agent.run", lambda job: 0)
    assert local.start(Job(target=Target("script.py"), spec=Spec(strategy="single"), processes=2, agent=True)) == 0
    assert capsys.readouterr().err == ""
