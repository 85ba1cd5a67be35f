"""Declarations: from keywords, files and the environment; outside wins; what is wrong is said with axis, got, why, instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from restoke.configs import AMPConfig, ClipGradConfig, ClipGradNormConfig, DDPConfig, DeepspeedConfig, DeepspeedZeROConfig
from restoke.errors import SpecError
from restoke.spec import ENVIRONMENT, Spec, outside_spec

FULL = Spec(
    strategy="ddp",
    device="cpu",
    precision="fp16",
    accumulate=4,
    clip=ClipGradNormConfig(max_norm=1.0, norm_type=2.0),
    seed=7,
    processes=2,
    settings=[DDPConfig(bucket_cap_mb=50), AMPConfig(init_scale=1024.0)],
)


def test_a_declared_spec_comes_back_from_json_as_it_was() -> None:
    assert Spec.of(json.loads(json.dumps(FULL.declared()))) == FULL


def test_nothing_declared_is_nothing_written() -> None:
    assert Spec().declared() == {}
    assert Spec.of({}) == Spec()


def test_a_spec_is_a_value() -> None:
    assert hash(FULL) == hash(Spec.of(FULL.declared()))
    with pytest.raises(AttributeError):
        FULL.strategy = "single"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (None, None),
        (1.5, ClipGradNormConfig(max_norm=1.5, norm_type=2.0)),
        ("1.5", ClipGradNormConfig(max_norm=1.5, norm_type=2.0)),
        ("norm:1.5", ClipGradNormConfig(max_norm=1.5, norm_type=2.0)),
        ("value:0.5", ClipGradConfig(clip_value=0.5)),
        ({"max_norm": 2.0, "norm_type": 1.0}, ClipGradNormConfig(max_norm=2.0, norm_type=1.0)),
        ({"clip_value": 0.5}, ClipGradConfig(clip_value=0.5)),
    ],
)
def test_clipping_may_be_written_in_several_ways(written: object, means: object) -> None:
    assert Spec(clip=written).clip == means  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mapping", "axis", "instead"),
    [
        ({"stratgy": "ddp"}, "stratgy", "did you mean 'strategy'"),
        ({"accumulate": "four"}, "accumulate", "give an integer"),
        ({"accumulate": "--5"}, "accumulate", "give an integer"),
        ({"seed": "\N{SUPERSCRIPT TWO}"}, "seed", "give an integer"),
        ({"accumulate": True}, "accumulate", "give an integer"),
        ({"accumulate": 1.5}, "accumulate", "give an integer"),
        ({"clip": "hard"}, "clip", "clip=1.0"),
        ({"clip": {"max_nrm": 1.0}}, "clip", "max_norm"),
        ({"settings": {"dpd": {}}}, "settings.dpd", "did you mean 'ddp'"),
        ({"settings": {"ddp": {"bucket_cap": 3}}}, "bucket_cap", "bucket_cap_mb"),
        ({"settings": {"ddp": False}}, "settings.ddp", ""),
        ({"settings": "ddp"}, "settings", "settings=[DDPConfig(...)]"),
        ({"settings": [object()]}, "", ""),
        ({"settings": [DDPConfig(), DDPConfig()]}, "settings", "give them once"),
    ],
)
def test_what_cannot_be_understood_is_named_with_the_nearest_right_word(
    mapping: dict[str, object], axis: str, instead: str
) -> None:
    with pytest.raises(SpecError) as caught:
        Spec.of(mapping)
    problem = caught.value.problems[0]
    assert axis in problem.axis
    assert instead in problem.instead
    assert problem.why


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "restoke.yaml"
    file.write_text("strategy: ddp\nprecision: bf16\nclip: 1.0\nsettings:\n  ddp: {bucket_cap_mb: 50}\n  amp:\n")
    spec = Spec.read(file)
    assert (spec.strategy, spec.precision, spec.setting(DDPConfig).bucket_cap_mb) == ("ddp", "bf16", 50)
    file.write_text("")
    assert Spec.read(file) == Spec()


@pytest.mark.parametrize("content", ["- a\n- b\n", "strategy: [", "strategy: ddp\nstrategies: x\n", None, b"\xff\xfe\x00"])
def test_a_bad_file_is_refused_by_its_name(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "bad.yaml"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SpecError) as caught:
        Spec.read(file)
    assert "bad.yaml" in str(caught.value)


def test_all_that_is_wrong_in_a_mapping_is_told_at_once() -> None:
    wrong = {"accumulate": "x", "presicion": 3, "seed": 1, "clip": "z", "settings": {"ddp": {"bucket_cap_m": 1, "buckets": 2}}}
    with pytest.raises(SpecError) as caught:
        Spec.of(wrong, "here")
    told = [problem.axis for problem in caught.value.problems]
    assert told == ["accumulate", "presicion", "clip", "settings.ddp.bucket_cap_m", "settings.ddp.buckets"]


def test_a_name_that_a_file_has_twice_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "restoke.yaml"
    file.write_text("strategy: ddp\nseed: 1\nsettings:\n  ddp: {bucket_cap_mb: 1, bucket_cap_mb: 2}\nstrategy: single\n")
    with pytest.raises(SpecError) as caught:
        Spec.read(file)
    why, instead = f"{file} has it on line 1 and again on line 5", "give it once"
    found = {problem.axis: problem for problem in caught.value.problems}
    assert list(found) == ["settings.ddp.bucket_cap_mb", "strategy"]
    assert found["strategy"] == ("strategy", "single", why, instead)


def test_outside_wins_and_says_what_it_overrode() -> None:
    spec, said = Spec(strategy="single", precision="bf16").overlaid({"strategy": "ddp", "accumulate": 2})
    assert (spec.strategy, spec.precision, spec.accumulate) == ("ddp", "bf16", 2)
    assert said == ["strategy=ddp (the script: single)"]


def test_outside_settings_override_field_by_field() -> None:
    mine = Spec(settings=[DDPConfig(bucket_cap_mb=50, broadcast_buffers=False), AMPConfig(init_scale=8.0)])
    spec, said = mine.overlaid({"settings": {"ddp": {"bucket_cap_mb": 7}}})
    assert spec.setting(DDPConfig) == DDPConfig(bucket_cap_mb=7, broadcast_buffers=False)
    assert spec.setting(AMPConfig) == AMPConfig(init_scale=8.0)
    assert len(said) == 1


def test_outside_settings_override_nested_ones_field_by_field() -> None:
    mine = Spec(settings=[DeepspeedConfig(zero_optimization=DeepspeedZeROConfig(stage=1, overlap_comm=True))])
    spec, _ = mine.overlaid({"settings": {"deepspeed": {"zero_optimization": {"stage": 2}}}})
    zero = spec.setting(DeepspeedConfig).zero_optimization
    assert zero is not None
    assert (zero.stage, zero.overlap_comm) == (2, True)


def test_the_environment_is_read() -> None:
    assert outside_spec({}) == {}
    assert outside_spec({ENVIRONMENT: '{"strategy": "ddp"}'}) == {"strategy": "ddp"}
    for bad in ("{", "[1]", "3"):
        with pytest.raises(SpecError, match=ENVIRONMENT):
            outside_spec({ENVIRONMENT: bad})
