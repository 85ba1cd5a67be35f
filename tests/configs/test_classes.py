"""What holds for every settings class, whichever there are."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import subprocess
import sys
from typing import Any

import attrs
import pytest

from restoke import configs
from restoke.configs import DDPConfig, DeepspeedConfig, DeepspeedZeROConfig
from restoke.errors import Problem, SpecError
from tests.configs.reference import REFERENCE, REQUIRED
from tests.configs.samples import CLASSES, FIELDS, NUMBERS, Field, required, wrong_values

every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
every_field = pytest.mark.parametrize("field", FIELDS, ids=str)


def refusal(make: Any, *args: Any, **kwargs: Any) -> Problem:
    with pytest.raises(SpecError) as caught:
        make(*args, **kwargs)
    (problem,) = caught.value.problems
    assert problem.axis
    assert problem.why
    assert problem.instead
    assert not problem.why.endswith(".")
    return problem


def test_the_reference_knows_every_class() -> None:
    assert set(REFERENCE) == set(CLASSES)
    assert len(CLASSES) == len(REFERENCE)


@every_class
def test_fields_and_order_and_defaults_are_the_references(cls: type[Any]) -> None:
    made = cls(**required(cls))
    assert [field.name for field in attrs.fields(cls)] == list(REFERENCE[cls])
    for name, default in REFERENCE[cls].items():
        if default is REQUIRED:
            assert name in required(cls)
        else:
            assert name not in required(cls)
            value = getattr(made, name)
            assert (value, type(value)) == (default, type(default))


@every_class
def test_settings_are_given_by_position_as_by_keyword(cls: type[Any]) -> None:
    given = {name: 1.0 if default is REQUIRED else default for name, default in REFERENCE[cls].items()}
    assert cls(*given.values()) == cls(**given) == cls(**required(cls))
    assert list(inspect.signature(cls).parameters) == list(given)


@every_class
def test_settings_are_frozen_and_hashable_and_copies_are_equal(cls: type[Any]) -> None:
    made = cls(**required(cls))
    for field in attrs.fields(cls):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(made, field.name, getattr(made, field.name))
    assert hash(made) == hash(cls(**required(cls)))
    assert made == pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == attrs.evolve(made)


@every_class
def test_the_docstring_says_what_each_field_is_for(cls: type[Any]) -> None:
    said = re.findall(r"^ {4}(\w+): (.+[.])$", inspect.cleandoc(cls.__doc__ or ""), flags=re.MULTILINE)
    assert [name for name, _ in said] == [field.name for field in attrs.fields(cls)]
    assert "Attributes:" in (cls.__doc__ or "")


@every_class
def test_an_unknown_name_is_refused_with_the_nearest(cls: type[Any]) -> None:
    name = attrs.fields(cls)[-1].name
    problem = refusal(cls, **{**required(cls), f"{name}x": 7})
    assert (problem.axis, problem.got) == (f"{cls.__name__}.{name}x", 7)
    assert repr(name) in problem.instead


@every_class
def test_too_many_settings_by_position_are_refused(cls: type[Any]) -> None:
    count = len(attrs.fields(cls))
    problem = refusal(cls, *[1] * (count + 1))
    assert problem.axis == cls.__name__
    assert f"{count} settings, not {count + 1}" in problem.why


@every_class
def test_a_setting_given_twice_is_refused(cls: type[Any]) -> None:
    first = attrs.fields(cls)[0].name
    assert refusal(cls, 1, **{**required(cls), first: 2}).axis == f"{cls.__name__}.{first}"


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if required(cls)], ids=lambda cls: cls.__name__)
def test_a_missing_setting_is_refused(cls: type[Any]) -> None:
    assert refusal(cls).axis == f"{cls.__name__}.{next(iter(required(cls)))}"


@every_field
def test_a_value_of_the_wrong_type_is_refused(field: Field) -> None:
    for value in wrong_values(field):
        problem = refusal(field.make, value)
        assert problem.axis == str(field)
        assert problem.got is value or problem.got == value


@pytest.mark.parametrize("field", [field for field in FIELDS if field.limited], ids=str)
def test_a_value_past_the_limit_is_refused(field: Field) -> None:
    refused = 0
    for value in NUMBERS if field.hint is not int else [number for number in NUMBERS if isinstance(number, int)]:
        try:
            field.make(value)
        except SpecError as error:
            (problem,) = error.problems
            assert (problem.axis, problem.got) == (str(field), value)
            assert problem.why.startswith("it must be ")
            assert str(field.name) not in problem.why
            assert problem.instead.startswith("give a value within that limit")
            refused += 1
    assert refused


@pytest.mark.parametrize("field", [field for field in FIELDS if field.optional], ids=str)
def test_none_is_taken_where_it_means_something(field: Field) -> None:
    assert getattr(field.make(None), field.name) is None


@pytest.mark.parametrize("field", [field for field in FIELDS if attrs.has(field.hint)], ids=str)
def test_a_section_is_given_as_settings_or_as_a_mapping(field: Field) -> None:
    name, kind = attrs.fields(field.hint)[0].name, field.hint
    value = getattr(kind(), name)
    assert getattr(field.make({name: value}), field.name) == kind(**{name: value}) == getattr(field.make(kind()), field.name)
    problem = refusal(field.make, {f"{name}x": value})
    assert problem.axis == f"{field}.{name}x"
    assert repr(name) in problem.instead


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        DeepspeedConfig(steps_per_print=0, verbse=True, zero_optimization={"stage": 4, "sage": 1})
    assert [problem.axis for problem in caught.value.problems] == [
        "DeepspeedConfig.steps_per_print",
        "DeepspeedConfig.verbse",
        "DeepspeedConfig.zero_optimization.stage",
        "DeepspeedConfig.zero_optimization.sage",
    ]


def test_sections_are_not_shared_between_settings() -> None:
    assert DeepspeedConfig().aio is not DeepspeedConfig().aio


def test_a_repr_is_what_one_would_write() -> None:
    made = DeepspeedConfig(zero_optimization=DeepspeedZeROConfig(stage=2), fp16=None)
    assert repr(made) == "DeepspeedConfig(zero_optimization=DeepspeedZeROConfig(stage=2))"
    assert repr(DDPConfig(backend="gloo", no_sync=True)) == "DDPConfig(backend='gloo')"


def test_every_public_name_is_there() -> None:
    assert {cls.__name__ for cls in CLASSES} < set(configs.__all__)
    assert all(vars(configs)[name] is not None for name in configs.__all__)


def test_settings_load_without_torch() -> None:
    code = "import sys, restoke.configs; sys.exit('torch' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
