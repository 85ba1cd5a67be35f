"""What the main rank writes is shown and logged, in order and in full; a terminal stays one."""

from __future__ import annotations

import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from restoke.launch.screen import CHUNK, Screen


@pytest.fixture
def two_files(tmp_path: Path) -> Iterator[tuple[int, int]]:
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("out", "err")]
    yield files[0], files[1]
    for file in files:
        os.close(file)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def test_each_stream_is_shown_on_its_own_and_both_are_logged(tmp_path: Path, two_files: tuple[int, int]) -> None:
    with Screen(tmp_path / "log", tmp_path, two_files) as screen:
        write(screen.paths[0], "to out\n")
        write(screen.paths[1], "to err\n")
    assert (tmp_path / "out").read_text() == "to out\n"
    assert (tmp_path / "err").read_text() == "to err\n"
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["to err", "to out"]


def test_much_more_than_a_pipe_holds_comes_through(tmp_path: Path, two_files: tuple[int, int]) -> None:
    text = "".join(f"{n}\n" for n in range(CHUNK))
    with Screen(tmp_path / "log", tmp_path, two_files) as screen:
        write(screen.paths[0], text)
    assert (tmp_path / "out").read_text() == (tmp_path / "log").read_text() == text


def test_output_goes_on_into_the_log_when_the_reader_went_away(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with Screen(tmp_path / "log", tmp_path, (writes, os.dup(writes))) as screen:
        write(screen.paths[0], "unseen\n")
    assert (tmp_path / "log").read_text() == "unseen\n"


def test_nothing_is_lost_where_the_stream_returns_at_once(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    text = "".join(f"{n}\n" for n in range(CHUNK))
    log = tmp_path / "log"
    with open(reads) as reader, ThreadPoolExecutor() as pool, Screen(log, tmp_path, (writes, 2)) as screen:
        written = pool.submit(write, screen.paths[0], text)
        while log.stat().st_size <= CHUNK:  # more than the stream holds
            assert not written.done()
        assert reader.read(len(text)) == text
        written.result()
    os.close(writes)
    assert log.read_text() == text


def test_a_terminal_stays_a_terminal_of_the_same_size(tmp_path: Path) -> None:
    master, own = os.openpty()
    termios.tcsetwinsize(own, (33, 111))
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size(1))"
    with Screen(tmp_path / "log", tmp_path, (own, own)) as screen, open(screen.paths[0], "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    said = "True os.terminal_size(columns=111, lines=33)"
    assert (tmp_path / "log").read_bytes() == f"{said}\n".encode()
    assert os.read(master, CHUNK) == f"{said}\r\n".encode()
    os.close(master)
    os.close(own)
