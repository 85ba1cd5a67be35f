"""The documentation builds strictly, and what it says about the code is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import yaml

import restoke
from restoke.optim import OptimizerSpec
from restoke.parts import Parts, Request
from restoke.spec import Precision, Spec
from restoke.world import World

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("src/restoke/**/*.py"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def with_blocks(language: str) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, language)]


def every_page() -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_public_name_has_its_place_in_the_api_pages(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {name: getattr(restoke, name) for name in restoke.__all__ if not name.startswith("__")}
    missing = [name for name, value in public.items() if f"{value.__module__}.{value.__qualname__}" not in documented]
    assert missing == []


@pytest.mark.parametrize("page", with_blocks("python"))
def test_the_python_on_a_page_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python")).replace("from __future__ import annotations\n", "")
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_strategy_that_contributing_shows_makes_parts() -> None:
    shown: dict[str, Any] = {}
    exec(blocks(ROOT / "CONTRIBUTING.md", "python")[0], shown)
    world = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"))
    optimizer = OptimizerSpec(torch.optim.SGD, {"lr": 0.1})
    parts = shown["prepare"](Request(Spec(), world, torch.nn.Linear(2, 1), optimizer, Precision(), None))
    assert isinstance(parts, Parts)
    assert set(parts.state.capture().chunks) == {"model/weight", "model/bias"}


@pytest.mark.parametrize("page", with_blocks("yaml"))
def test_the_specs_on_a_page_can_be_read(page: Path) -> None:
    for text in blocks(page, "yaml"):
        assert Spec.of(yaml.safe_load(text)) != Spec()


@pytest.mark.parametrize("page", every_page())
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose(page))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [*every_page(), pytest.param(ROOT / "scripts/demo", id="scripts/demo")])
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"\b(?:examples|scripts|benchmarks|tests|docs|src)/[\w./-]*\w", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists() and "mine" not in name] == []


@pytest.mark.parametrize("page", every_page())
def test_lines_are_as_long_as_the_code_s(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 128 and not line.startswith("|")] == []


def test_every_field_of_a_spec_is_listed_with_its_default_and_its_help() -> None:
    page = (ROOT / "docs/api/core.md").read_text(encoding="utf-8")
    rows = [f"| `{axis.name}` | `{axis.default!r}` | {axis.metadata['help']} |" for axis in attrs.fields(Spec)]
    assert [row for row in rows if row not in page] == []


def test_each_message_of_ours_in_troubleshooting_is_in_the_source() -> None:
    ours = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").split("## From PyTorch")[0]
    messages = re.findall(r"^### `(.+)`$", ours, re.MULTILINE)
    assert len(messages) > 5
    assert [message for message in messages if message not in SOURCE] == []


def test_each_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    names = {re.split(r"[\[<>=~; ]", name)[0] for name in wanted} - {"restoke"}
    rows = [line for line in (ROOT / "docs/dependencies.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert listed == names
