"""The source keeps the architecture's rules, and each rule can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import EVERYWHERE, IN_SOURCE, MAX_BODY, MAX_FILE, Rule, Tree, no_condition_names_a

ROOT = Path(__file__).parents[1]
SOURCE = Tree(ROOT / "src" / "restoke")


def name(rule: Rule) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", IN_SOURCE, ids=name)
def test_the_source_keeps(rule: Rule) -> None:
    assert list(rule(SOURCE)) == []


def test_no_condition_names_a_strategy() -> None:
    from restoke.table import rows

    assert list(no_condition_names_a(rows())(SOURCE)) == []


@pytest.mark.parametrize("folder", ["tests", "examples", "benchmarks", "scripts"])
@pytest.mark.parametrize("rule", EVERYWHERE, ids=name)
def test_the_rest_keeps(rule: Rule, folder: str) -> None:
    assert list(rule(Tree(ROOT / folder))) == []


LONG_BODY = "def f():\n" + "    x = 1\n" * (MAX_BODY + 1)
LONG_FILE = "x = 1\n" * MAX_FILE
BROKEN = [
    ("every_part_has_a_layer", {"novelty.py": ""}),
    ("imports_come_from_lower_layers", {"world.py": "from restoke.session import Session", "session.py": ""}),
    ("imports_come_from_lower_layers", {"world.py": "def f():\n    import restoke.cli.main"}),
    ("imports_come_from_lower_layers", {"world.py": "def f():\n    from restoke import session", "session.py": ""}),
    ("imports_come_from_lower_layers", {"errors.py": "import_module('restoke.world')"}),
    ("the_lowest_layer_imports_no_torch", {"spec.py": "def f():\n    import torch.distributed as dist"}),
    ("the_lowest_layer_imports_no_torch", {"configs/ddp.py": "from torch import nn"}),
    ("the_lowest_layer_imports_no_torch", {"__init__.py": "import importlib\nimportlib.import_module('torch')"}),
    ("strategies_do_not_import_each_other", {"strategies/a.py": "", "strategies/b.py": "from restoke.strategies.a import f"}),
    ("strategies_do_not_import_each_other", {"strategies/a.py": "", "strategies/b.py": "from restoke.strategies import a"}),
    ("imports_make_no_cycle", {"world.py": "import restoke.comm", "comm.py": "def f():\n    from restoke.world import World"}),
    ("engines_are_imported_by_strategies_only", {"session.py": "def f():\n    import deepspeed.comm"}),
    ("the_median_file_is_short", {"__init__.py": LONG_FILE, "spec.py": LONG_FILE}),
    ("docstrings_are_a_small_share", {"spec.py": '"""One.\n\nTwo.\nThree.\n"""\nx = 1\n'}),
    ("nothing_asks_hasattr", {"spec.py": "hasattr(1, 'x')"}),
    ("complexity_is_not_waved_through", {"spec.py": "def f():  # noqa: C901\n    pass"}),
    ("files_are_short", {"spec.py": LONG_FILE + "x = 1\n"}),
    ("functions_are_short", {"spec.py": LONG_BODY}),
    ("functions_are_short", {"spec.py": LONG_BODY.replace("    x = 1\n", "", 15)}),
    ("modules_begin_with_a_sentence", {"spec.py": "import os"}),
    ("modules_begin_with_a_sentence", {"spec.py": '"""Things"""'}),
    ("names_say_something", {"data/utils.py": ""}),
    ("no_condition_names_a_strategy", {"session.py": "if strategy == 'ddp': pass"}),
    ("no_condition_names_a_strategy", {"session.py": "if strategy in ('x', 'fsdp'): pass"}),
    ("no_condition_names_a_strategy", {"session.py": "match strategy:\n    case 'ddp': pass"}),
    ("no_condition_names_a_strategy", {"session.py": "x = strategy.startswith('fsdp')"}),
]
RULES = {rule.__name__: rule for rule in (*IN_SOURCE, no_condition_names_a({"ddp", "fsdp"}))}
CLEAN = {
    "__init__.py": '"""A package."""\n' + "x = 1\n" * 20,
    "errors.py": '"""Errors."""\nif TYPE_CHECKING:\n    from restoke.spec import Spec\n',
    "spec.py": '"""Specs."""\nfrom restoke.errors import E\n',
    "session.py": '"""Verbs."""\nfrom restoke.errors import E\nimport torch\nif device == "cpu": pass\nname = "ddp"\n',
    "strategies/ddp.py": '"""One."""\nfrom restoke.errors import E\nimport fairscale\nif strategy == "ddp": pass\n',
}


def write(root: Path, files: dict[str, str]) -> Tree:
    for path, text in files.items():
        (root / "restoke" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "restoke" / path).write_text(text, encoding="utf-8")
    return Tree(root / "restoke")


@pytest.mark.parametrize("rule", RULES.values(), ids=name)
def test_a_clean_tree_passes(rule: Rule, tmp_path: Path) -> None:
    assert list(rule(write(tmp_path, CLEAN))) == []


@pytest.mark.parametrize(("rule", "files"), BROKEN)
def test_a_broken_tree_fails(rule: str, files: dict[str, str], tmp_path: Path) -> None:
    assert list(RULES[rule](write(tmp_path, files)))


def test_every_rule_has_a_tree_that_breaks_it() -> None:
    assert {rule for rule, _ in BROKEN} == RULES.keys()


def python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_importing_restoke_loads_neither_torch_nor_a_part_of_it() -> None:
    code = "import sys, restoke; print([m for m in sys.modules if m == 'torch' or m.startswith('restoke.')])"
    assert python(code) == "['restoke._version']"


def test_every_public_name_loads_and_is_listed() -> None:
    code = "import restoke; print([n for n in restoke.__all__ if getattr(restoke, n) is None or n not in dir(restoke)])"
    assert python(code) == "[]"
