"""The compatibility page is generated from the table, and fresh."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/compatibility.py"))


def test_the_page_is_what_the_table_and_the_last_record_give() -> None:
    tested = json.loads((ROOT / "docs/tested.json").read_text())
    assert (ROOT / "docs/compatibility.md").read_text() == SCRIPT["page"](tested), "run scripts/compatibility.py"


def test_a_cell_is_tested_declared_or_refused_with_its_reason() -> None:
    page = SCRIPT["page"]({"passed": ["single/fp32/cpu"], "versions": {"torch": "1"}})
    cpu = page.split("## On cuda")[0]
    single = next(line for line in cpu.splitlines() if line.startswith("| `single`"))
    assert single.split("|")[2].strip() == "**tested**"
    assert single.split("|")[4].strip() == "declared"
    number = single.split("|")[3].strip()
    assert any(line.startswith(f"{number}. precision='tf32'") for line in cpu.splitlines())


def test_every_cell_that_can_run_here_was_recorded_as_tested() -> None:
    from restoke.testing import cases

    tested = json.loads((ROOT / "docs/tested.json").read_text())["passed"]
    here = {f"{case.spec.strategy}/{case.spec.precision}/cpu" for case in cases() if case.row.package == "restoke"}
    assert here == set(tested)
