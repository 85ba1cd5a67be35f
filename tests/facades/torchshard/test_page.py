"""The page on sharded layers shows a script of TorchShard's becoming a session: both run, and print the same losses."""

from __future__ import annotations

import re
from pathlib import Path

from tests.facades.torchshard.scripting import script

PAGE = Path(__file__).parents[3] / "docs" / "sharded-layers.md"


def side(diff: str, mark: str) -> str:
    """The lines of both, and those of one side."""
    lines = (line for line in diff.splitlines() if not line.startswith("-+".replace(mark, "")))
    return "\n".join(line[1:] for line in lines) + "\n"


def test_both_sides_of_the_diff_run_and_print_the_same(tmp_path: Path) -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    told = {}
    for name, mark in (("theirs", "-"), ("ours", "+")):
        (tmp_path / f"{name}.py").write_text(side(diff, mark))
        told[name] = [out for out, _ in script(2, str(tmp_path / name))]
    assert "torchshard" in (tmp_path / "theirs.py").read_text()
    assert "torchshard" not in (tmp_path / "ours.py").read_text()
    assert told["theirs"][0].count("loss ") == 5
    assert told["theirs"] == told["ours"]
