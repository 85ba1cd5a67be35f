"""A script that imports another library's names gets a facade's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from restoke.launch.alias import Alias, install

MODULES = {"stork": "restoke.errors", "stork.configs": "restoke.facts", "stork.io": "json"}


@pytest.fixture
def installed() -> Iterator[None]:
    finder = Alias(MODULES)
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_a_module_and_its_submodules_answer_with_the_facades_own_objects() -> None:
    import json

    import restoke.errors

    space: dict[str, object] = {}
    exec("import stork.configs\nfrom stork import SpecError\nfrom stork import io\nfrom stork.io import loads", space)
    assert space["SpecError"] is restoke.errors.SpecError
    assert space["loads"] is json.loads
    stork = space["stork"]
    assert isinstance(stork, ModuleType)
    assert stork.configs.DEVICES[-1] == "cpu"
    assert "WorldError" in dir(stork)
    assert not hasattr(restoke.errors, "configs")  # nothing is set on the facade


@pytest.mark.usefixtures("installed")
def test_a_star_import_takes_what_the_facade_lists() -> None:
    space: dict[str, object] = {}
    exec("from stork.io import *", space)
    assert {"loads", "dumps"} <= space.keys()
    assert "codecs" not in space  # not in json.__all__
    exec("from stork import *", space)
    assert "SpecError" in space


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("code", ["import stork.nothing", "from stork import nothing"])
def test_a_name_that_the_facade_does_not_have_is_an_import_error(code: str) -> None:
    with pytest.raises(ImportError, match="nothing"):
        exec(code)


def test_a_facade_declares_its_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    facade = ModuleType("restoke.facades.stork")
    facade.MODULES = {"stork": "restoke.errors"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "restoke.facades.stork", facade)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install("stork")
    assert importlib.import_module("stork").RestokeError.__module__ == "restoke.errors"
    del sys.modules["stork"]
