"""Torch is asked what is here only where it may know more than "a CPU"."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import attrs
import pytest

from restoke.errors import LaunchError
from restoke.launch import machine as asking
from restoke.launch.machine import DEVICE_FILES, accelerated, asked_here, asked_of_a_child, machine


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: request.param)


@pytest.mark.skipif(sys.platform != "linux", reason="device files are Linux's")
@pytest.mark.parametrize(
    ("build", "files", "answer"),
    [
        ("2.13.0", (), False),
        *(("2.13.0", (name,), True) for name in DEVICE_FILES),
        ("2.13.0+cpu", ("nvidiactl",), False),
        ("2.13.0+cu130", ("nvidiactl",), True),
        ("2.13.0+xpu", (), True),
    ],
    indirect=["build"],
)
@pytest.mark.usefixtures("build")
def test_a_device_file_and_a_build_that_can_use_it_make_an_accelerator(
    files: tuple[str, ...], answer: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert accelerated(tmp_path) is answer


def test_torch_is_not_asked_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asking, "asked_here")
    monkeypatch.delattr(asking, "asked_of_a_child")
    monkeypatch.setattr(asking, "accelerated", lambda: True)
    assert machine("cpu").devices == ("cpu",)
    monkeypatch.setattr(asking, "accelerated", lambda: False)
    assert machine("auto").devices == ("cpu",)


def test_the_process_that_imports_torch_anyway_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    here, child = attrs.evolve(machine("cpu"), accelerators=1), attrs.evolve(machine("cpu"), accelerators=2)
    monkeypatch.setattr(asking, "accelerated", lambda: True)
    monkeypatch.setattr(asking, "asked_here", lambda: here)
    monkeypatch.setattr(asking, "asked_of_a_child", lambda: child)
    assert machine("auto", torch_comes=True) is here
    assert machine("auto") is child


def test_a_child_answers_as_this_process_would() -> None:
    assert asked_of_a_child() == asked_here()


def test_a_torch_that_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"libcudart\.so is missing"):
        asked_of_a_child()
