"""The bootstrap runs a script as `python script.py` does: same output, same exit code, to the letter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from restoke.launch.leave import LAST_WORDS
from restoke.launch.records import Record, log_of, read
from restoke.launch.worker import VARIABLE, Orders, command

SAME = {
    "its own name and path": """
        import sys
        print(__name__, __file__, __spec__, __package__, __doc__, sys.argv, sys.path[0], type(__builtins__))
        print(sorted(set(globals()) - {'__annotations__'}), sys.modules["__main__"].__dict__ is globals())""",
    "nothing at its end": "pass",
    "exit code 3": "import sys; print('out'); sys.exit(3)",
    "exit code 0": "import sys; sys.exit()",
    "an exit code past 255": "import sys; sys.exit(256 + 7)",
    "an exit message": "raise SystemExit('no data')",
    "an exception with its cause": """
        def f():
            raise KeyError('x')
        try:
            f()
        except KeyError as error:
            raise ValueError('two\\nlines') from error""",
    "a syntax error": "x = (",
    "a hook of its own": """
        import sys
        sys.excepthook = lambda kind, error, trace: print('hook', kind, error, trace.tb_frame.f_code.co_name)
        1 / 0""",
    "threads and exit handlers in their order": """
        import atexit, threading, time
        atexit.register(print, 'handler 1')
        atexit.register(print, 'handler 2')
        atexit.register(lambda: 1 / 0)
        gate = threading.Event()
        threading.Thread(target=lambda: (gate.wait(), print('thread'))).start()
        print('end of script')
        gate.set()""",
    "a file that it never closes": "import sys; keep = open(sys.argv[1], 'w'); keep.write('written')",
    "its own classes pickled by an exit handler": """
        import atexit, pickle
        class Mine: pass
        atexit.register(lambda: print(pickle.loads(pickle.dumps(Mine()))is None))
        import sys; sys.exit(4)""",
    "processes that it spawns": """
        import multiprocessing
        def square(x):
            return x * x
        if __name__ == '__main__':
            with multiprocessing.get_context('spawn').Pool(1) as pool:
                print(pool.map(square, [1, 2, 3]))""",
    "a neighbour that it imports": "import neighbour; print(neighbour.__file__)",
}


def ends(words: list[str], folder: Path, **environ: str) -> tuple[int, str, str]:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environ
    done = subprocess.run(words, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, re.sub("0x[0-9a-f]+", "0x", done.stderr)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """In a folder that is not the one where it is started, where a module lies in wait that must not be taken."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "neighbour.py").touch()
    (tmp_path / "attrs.py").write_text("raise RuntimeError('taken from where it was started')")
    return folder / "script.py"


@pytest.mark.parametrize("code", SAME.values(), ids=SAME)
def test_a_script_ends_as_under_python_itself(code: str, script: Path) -> None:
    lines = code.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    script.write_text("\n".join(line[indent:] for line in lines) + "\n")
    words = ["scripts/script.py", "written"]
    left = script.parent.parent / "written"
    expected = ends([sys.executable, *words], script.parent)
    wrote = left.read_text() if left.exists() else None
    left.unlink(missing_ok=True)
    assert ends(command(words), script.parent) == expected
    assert (left.read_text() if left.exists() else None) == wrote


@pytest.mark.parametrize("name", ["package", "package.module", "module", "missing"])
def test_a_module_ends_as_under_python_itself(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("import sys; print('imported', sys.argv)")
    probe = "import sys; print(__name__, __package__, __spec__ and __spec__.name, __file__, sys.argv, sys.path[0]); sys.exit(5)"
    for path in (folder / "__main__.py", folder / "module.py", tmp_path / "module.py"):
        path.write_text(probe)
    code, out, err = ends([sys.executable, "-m", name, "-x"], folder)
    mine = ends(command(["-m", name, "-x"]), folder)
    assert mine[:2] == (code, out)
    assert f"No module named {name}".replace(name, "") in mine[2] if name == "missing" else mine[2] == err


def test_a_rank_whose_parent_died_before_it_began_does_not_run_the_script(script: Path) -> None:
    script.write_text("print('ran')")
    assert ends(command([str(script)]), script.parent, **Orders(parent=1).environment) == (1, "", "")


@pytest.mark.parametrize(
    ("code", "phase", "exit_code", "error"),
    [
        ("print('hello')", "finished", 0, ""),
        ("import sys; sys.exit(0)", "finished", 0, ""),
        ("import sys; sys.exit(9)", "failed", 9, "sys.exit(9)"),
        ("import sys; sys.exit(256 + 7)", "failed", 7, "sys.exit(263)"),
        ("raise SystemExit('why')", "failed", 1, "sys.exit('why')"),
        ("import json; json.loads('')", "failed", 1, "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("raise KeyboardInterrupt", "failed", 130, "KeyboardInterrupt"),
        ("import os; os._exit(3)", "running", 3, ""),
    ],
)
def test_a_rank_records_how_it_ended(code: str, phase: str, exit_code: int, error: str, script: Path) -> None:
    script.write_text(code)
    orders = Orders(parent=os.getpid(), folder=str(script.parent)).environment
    assert ends(command([str(script)]), script.parent, RANK="2", **orders) == (exit_code, "", "")
    record = read(script.parent, 2)
    assert record is not None
    assert (record.rank, record.phase, record.error) == (2, phase, error)
    assert record.code == (0 if phase == "running" else exit_code)
    log = log_of(script.parent, 2).read_text()
    assert log == record.traceback + ("hello\n" if "hello" in code else "why\n" if "why" in code else "")


def test_the_causes_of_an_error_are_recorded(script: Path) -> None:
    script.write_text("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise OSError('disk') from error")
    ends(command([str(script)]), script.parent, **Orders(folder=str(script.parent)).environment)
    record = read(script.parent, 0)
    assert record is not None
    assert record.chain == ("OSError: disk", "ZeroDivisionError: division by zero")


def test_a_crash_in_native_code_leaves_its_stack_in_the_log(script: Path) -> None:
    script.write_text("import ctypes\nctypes.string_at(0)")
    code, *_ = ends(command([str(script)]), script.parent, **Orders(folder=str(script.parent)).environment)
    assert code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in log_of(script.parent, 0).read_text()


def test_orders_are_not_passed_on_to_what_the_script_starts(script: Path) -> None:
    script.write_text(f"import os; print({VARIABLE!r} in os.environ)")
    assert ends(command([str(script)]), script.parent, **Orders().environment)[1] == "False\n"


def test_a_facade_answers_to_its_librarys_name(script: Path) -> None:
    (script.parent / "fake.py").write_text(
        "import sys, types\nfacade = types.ModuleType('restoke.facades.stork')\n"
        "facade.MODULES = {'stork': 'restoke.errors'}\nsys.modules['restoke.facades.stork'] = facade\n"
    )
    script.write_text("from stork import RestokeError; print(RestokeError.__module__)")
    bootstrap = "import sys, fake; from restoke.launch.worker import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", bootstrap, str(script)]
    done = ends(words, script, PYTHONPATH=str(script.parent), PYTHONSAFEPATH="", **Orders(facade="stork").environment)
    assert done == (0, "restoke.errors\n", "")


def test_a_failed_rank_has_a_bounded_time_for_its_last_words(script: Path) -> None:
    assert 5 < LAST_WORDS < 60
    script.write_text(
        "from restoke.launch import leave\nleave.LAST_WORDS = 0.1\nimport atexit, time\natexit.register(time.sleep, 99)\n1 / 0"
    )
    code, _, err = ends(command([str(script)]), script.parent)
    assert code == 1
    assert "Timeout" in err


def test_a_full_disk_does_not_change_how_the_script_ended(script: Path) -> None:
    script.write_text(f"import shutil, sys; shutil.rmtree({str(script.parent)!r}); sys.exit(6)")
    assert ends(command([str(script)]), script.parent.parent, **Orders(folder=str(script.parent)).environment)[0] == 6


def test_a_record_of_a_running_rank_tells_its_process() -> None:
    assert Record(rank=0).pid == os.getpid()
