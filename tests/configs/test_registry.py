"""Each class of settings has one key, also a class that another package brings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from restoke.configs import SETTINGS, ClipGradConfig, DDPConfig, key_of, register, settings
from restoke.errors import SpecError


@settings
class MineConfig:
    size: int = 1


@settings
class OtherConfig:
    size: int = 1


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = dict(SETTINGS)
    yield
    SETTINGS.clear()
    SETTINGS.update(before)


def test_the_keys_are_those_of_spec_files() -> None:
    assert list(SETTINGS) == ["amp", "apex", "ddp", "fsdp", "tensor", "horovod", "oss", "sddp", "fairscale-fsdp", "deepspeed"]


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_know_their_key(key: str) -> None:
    assert key_of(SETTINGS[key]()) == key


def test_another_packages_settings_are_registered_once_and_for_all() -> None:
    with pytest.raises(SpecError, match=r"settings=MineConfig\(\): MineConfig is not the settings"):
        key_of(MineConfig())
    register("mine", MineConfig)
    register("mine", MineConfig)
    assert (SETTINGS["mine"], key_of(MineConfig())) == (MineConfig, "mine")


def test_a_key_that_is_taken_is_refused() -> None:
    with pytest.raises(SpecError, match=r"settings.ddp=.*: the name belongs to DDPConfig. Instead: .*another name"):
        register("ddp", MineConfig)
    assert SETTINGS["ddp"] is DDPConfig


def test_a_class_has_one_key() -> None:
    with pytest.raises(SpecError, match=r"settings.mine=.*: the class is registered as 'ddp' already. Instead: use that name"):
        register("mine", DDPConfig)
    assert "mine" not in SETTINGS


@pytest.mark.parametrize("wrong", [dict, 3, MineConfig(), None])
def test_what_is_no_class_of_settings_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"settings.mine=.*: it is not a class of settings"):
        register("mine", wrong)


def test_the_class_itself_is_refused_with_what_to_write() -> None:
    with pytest.raises(SpecError, match=r"settings=<class .*: it is the class, .* Instead: DDPConfig\(\)"):
        key_of(DDPConfig)


@pytest.mark.parametrize("wrong", [ClipGradConfig(1.0), {"bucket_cap_mb": 25}, "ddp", None, OtherConfig()])
def test_what_is_no_settings_is_refused_with_all_there_are(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"settings=.* is not the settings of .* Instead: one of: AMPConfig, .*DeepspeedConfig"):
        key_of(wrong)


def test_a_subclass_is_refused_for_nothing_would_obey_it() -> None:
    @attrs.frozen
    class More(DDPConfig):
        pass

    with pytest.raises(SpecError, match=r"More is not the settings"):
        key_of(More())
