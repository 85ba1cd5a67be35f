"""Runs a script or a module as `python` itself would, except that `__main__` lives on until the process ends."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any


def run(words: Sequence[str]) -> None:
    """Run `script ARGS...` or `-m module ARGS...`; whatever that raises comes through.

    `runpy` takes its `__main__` away when the last line is done; what threads and exit handlers pickle would then be lost.
    """
    if words[0] == "-m":
        _run_module(words[1], words[2:])
    else:
        _run_script(words[0], words[1:])


def _run_script(script: str, arguments: Sequence[str]) -> None:
    sys.argv = [script, *arguments]
    _first_on_path(os.path.dirname(os.path.realpath(script)))
    path = os.path.abspath(script)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    _execute(code, __file__=path, __loader__=SourceFileLoader("__main__", path), __spec__=None, __package__=None)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-m", *arguments]
    _first_on_path(os.getcwd())
    spec, code = _find(name)
    sys.argv[0] = spec.origin or name
    _execute(code, __file__=spec.origin, __loader__=spec.loader, __spec__=spec, __package__=spec.parent)


def _find(name: str) -> tuple[ModuleSpec, CodeType]:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if spec.submodule_search_locations is not None:
        return _find(f"{name}.__main__")
    loader: Any = spec.loader
    code = loader.get_code(name)
    if code is None:
        raise ImportError(f"No code object available for {name}", name=name)
    return spec, code


def _first_on_path(folder: str) -> None:
    """The bootstrap itself runs under -P, which would have put nothing there."""
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def _execute(code: CodeType, **names: Any) -> None:
    main = ModuleType("__main__")
    vars(main).update(names, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, vars(main))  # noqa: S102 - running the user's script is what this is for


def own_frames_removed(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the launcher's, as `python script.py` would show it."""
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _ours(filename: str) -> bool:
    return os.path.dirname(filename) == os.path.dirname(__file__) or filename.startswith("<frozen ")
