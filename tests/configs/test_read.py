"""Plain values become settings and come back the same; what does not fit is named as the user wrote it."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from restoke.configs import SETTINGS, ClipGradNormConfig, DDPConfig, DeepspeedConfig, settings_from, settings_to
from restoke.errors import SpecError
from tests.configs.samples import CLASSES, FIELDS, Field, instances, required, wrong_values


def there_and_back(made: Any, only_changed: bool) -> list[Any]:
    plain = settings_to(made, only_changed)
    texts = (json.loads(json.dumps(plain, allow_nan=False)), yaml.safe_load(yaml.safe_dump(plain)))
    return [settings_from(type(made), text, "settings.x") for text in texts]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_settings_come_back_exactly_from_json_and_yaml(cls: type[Any], data: st.DataObject) -> None:
    made = data.draw(instances(cls))
    for only_changed in (True, False):
        for back in there_and_back(made, only_changed):
            assert back == made
            assert repr(back) == repr(made)  # 1, 1.0 and True are equal, but not the same
    assert set(settings_to(made, only_changed=False)) == {field.name for field in attrs.fields(cls)}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_defaults_are_nothing_to_tell(cls: type[Any]) -> None:
    assert settings_to(cls(**required(cls))) == required(cls)


def test_only_what_changed_is_told_down_to_the_sections() -> None:
    made = DeepspeedConfig(zero_optimization={"stage": 2, "offload_optimizer": {}}, fp16={}, aio=None)
    plain = {"zero_optimization": {"stage": 2, "offload_optimizer": {}}, "fp16": {}, "aio": None}
    assert settings_to(made) == plain
    assert settings_from(DeepspeedConfig, plain, "settings.deepspeed") == made
    assert settings_to(made, only_changed=False)["zero_optimization"] == settings_to(made.zero_optimization, only_changed=False)
    assert settings_to(made, only_changed=False)["zero_optimization"]["stage3_max_live_parameters"] == 10**9


def test_infinity_is_told_in_a_way_that_json_has() -> None:
    assert settings_to(ClipGradNormConfig(1.0, float("inf"))) == {"max_norm": 1.0, "norm_type": "inf"}


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_a_wrong_value_is_named_as_the_file_has_it(field: Field) -> None:
    for value in wrong_values(field):
        with pytest.raises(SpecError) as caught:
            settings_from(field.cls, {**required(field.cls), field.name: value}, "settings.some")
        assert [problem.axis for problem in caught.value.problems] == [f"settings.some.{field.name}"]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_unknown_name_is_named_with_the_nearest(cls: type[Any]) -> None:
    name = attrs.fields(cls)[0].name
    with pytest.raises(SpecError) as caught:
        settings_from(cls, {**required(cls), name[:-1]: 1}, "settings.some")
    (problem,) = caught.value.problems
    assert problem.axis == f"settings.some.{name[:-1]}"
    assert repr(name) in problem.instead


def test_a_section_is_named_by_its_whole_path() -> None:
    with pytest.raises(SpecError) as caught:
        settings_from(DeepspeedConfig, {"zero_optimization": {"offload_param": {"device": "gpu"}}}, "settings.deepspeed")
    (problem,) = caught.value.problems
    assert (problem.axis, problem.got) == ("settings.deepspeed.zero_optimization.offload_param.device", "gpu")


@pytest.mark.parametrize("wrong", [None, 3, "no_sync", ["no_sync"]])
def test_what_is_no_mapping_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"settings.ddp=.*: it is not a mapping of settings. Instead: .*bucket_cap_mb"):
        settings_from(DDPConfig, wrong, "settings.ddp")


@pytest.mark.parametrize("name", [True, 3, None, "self", "cls"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(SpecError, match=rf"settings.ddp.{name}=1: there is no such setting"):
        settings_from(DDPConfig, {name: 1}, "settings.ddp")


def test_what_a_foreign_class_raises_is_a_refusal_too() -> None:
    @attrs.frozen
    class Plain:
        size: int = attrs.field(validator=attrs.validators.instance_of(int))

    assert settings_to(settings_from(Plain, {"size": 3}, "settings.plain")) == {"size": 3}
    for wrong in ({"size": "x"}, {"sze": 3}):
        with pytest.raises(SpecError, match=r"settings.plain=.*size"):
            settings_from(Plain, wrong, "settings.plain")


def test_a_spec_file_may_say_large_numbers_as_people_do() -> None:
    text = "deepspeed: {zero_optimization: {stage: 2, reduce_bucket_size: 5e8, sub_group_size: 1e9}}"  # YAML 1.1 reads texts
    zero = settings_from(SETTINGS["deepspeed"], yaml.safe_load(text)["deepspeed"], "settings.deepspeed").zero_optimization
    assert (zero.reduce_bucket_size, zero.sub_group_size) == (500_000_000, 10**9)
