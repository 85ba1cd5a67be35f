"""`--memory`: measures every session of a script from outside; each rank leaves its figures, and the parent shows them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from restoke.errors import SessionError
from restoke.prepared import TOLD

if TYPE_CHECKING:
    from restoke.memory.measure import Memory
    from restoke.memory.records import RankMemory
    from restoke.session import Session

NOTHING = "restoke: --memory: no session was prepared, so there is nothing to show\n"


@contextmanager
def measured(folder: Path | None, rank: int) -> Iterator[None]:
    """Measures what is prepared within it. At its end the figures go to `folder`, or to the screen where there is none.

    Until the script prepares a session nothing is imported; an error of the measuring never becomes one of the script.
    """
    found: list[Memory] = []

    def told(session: Session) -> None:
        from restoke.memory.measure import Memory

        if not found:
            found.append(Memory())
        found[0].add(session)

    TOLD.append(told)
    try:
        yield
    finally:
        TOLD.remove(told)
        try:
            ranks = [memory.record for memory in found]
            for memory in found:
                memory.close()
            _tell(ranks, folder, rank)
        except (OSError, RuntimeError, SessionError) as error:
            sys.stderr.write(f"restoke: --memory: {error}\n")


def _tell(ranks: list[RankMemory], folder: Path | None, rank: int) -> None:
    if folder is None:
        sys.stderr.write(_shown(ranks))
        return
    for one in ranks:
        path_of(folder, rank).write_text(json.dumps(one.plain), encoding="utf-8")


def path_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.memory.json"


def shown(folder: Path, ranks: Iterable[int]) -> str:
    """The table of those of these ranks that left figures."""
    from restoke.memory.records import RankMemory

    paths = [path for path in (path_of(folder, rank) for rank in ranks) if path.is_file()]
    return _shown([RankMemory.of(json.loads(path.read_text(encoding="utf-8"))) for path in paths])


def _shown(ranks: list[RankMemory]) -> str:
    from restoke.memory.table import table

    return table(ranks) if ranks else NOTHING
