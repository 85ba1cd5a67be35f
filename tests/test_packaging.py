"""The wheel and the sdist hold what they should, and the wheel works where nothing else of the repository is."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from restoke import __version__

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    ran = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


def test_the_wheel_holds_every_module_the_types_and_the_licence(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    source = {str(path.relative_to(ROOT / "src")) for path in ROOT.glob("src/restoke/**/*") if path.suffix in {".py", ".typed"}}
    info = f"restoke-{__version__}.dist-info"
    extra = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert "restoke/py.typed" in held
    assert held == source | extra


def test_the_metadata_say_what_the_project_says(wheel: Path) -> None:
    metadata = zipfile.ZipFile(wheel).read(f"restoke-{__version__}.dist-info/METADATA").decode()
    fields = dict(line.split(": ", 1) for line in metadata.partition("\n\n")[0].splitlines())
    assert fields["Version"] == __version__
    assert fields["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata


def test_the_sdist_can_be_tested_and_built(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert held >= {"pyproject.toml", "LICENSE", "README.md", "src/restoke/py.typed", "tests/conftest.py", "scripts/test"}
    assert [name for name in held if re.search(r"__pycache__|\.venv|\.git/", name)] == []


def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel, cwd=tmp_path)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    # What restoke depends on is taken from here; as a line of a .pth file, without the editable restoke that lies there.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    where = run(python, "-c", "import restoke; print(restoke.__file__, restoke.__version__)", cwd=tmp_path)
    assert where.split() == [f"{site}/restoke/__init__.py", __version__]
    assert "launch" in run(tmp_path / "venv/bin/restoke", "--help", cwd=tmp_path)
