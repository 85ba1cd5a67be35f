"""Lines on stdout, from the ranks that were chosen; through rich where stdout is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, final

from restoke.errors import SpecError

PREFIX = "Stoke -- "


@final
class Printer:
    """Prints for one rank of `size`. `rank` None means that there is one process, which prints whatever ranks are chosen.

    Raises:
        SpecError: `chosen` is neither a rank nor several nor None, which chooses none; or there is no such rank.
    """

    def __init__(self, rank: int | None, chosen: Any, size: int = 1) -> None:
        self._rank = rank
        self._chosen = ranks_of(chosen, "info_rank")
        if rank is not None and not set(self._chosen) <= set(range(size)):
            there = "there is rank 0 alone" if size == 1 else f"the ranks are 0 to {size - 1}"
            raise SpecError.of("info_rank", chosen, there, "some of them, or None to print nowhere")

    def say(self, lines: str | Sequence[Any], single_line: bool = False) -> None:
        """Print on the chosen ranks: a line each, or all joined by commas on one."""
        self.say_on(self._chosen, lines, single_line)

    def say_on(self, ranks: Collection[int], lines: Any, single_line: bool = False) -> None:
        """Print on these ranks."""
        if self._rank is not None and self._rank not in ranks:
            return
        texts = [str(line) for line in lines] if isinstance(lines, list | tuple) else [str(lines)]
        for text in [", ".join(texts)] if single_line else texts:
            _write(text)


def ranks_of(value: Any, axis: str) -> tuple[int, ...]:
    """The ranks that a rank, several, or None say. Raises SpecError for anything else."""
    if value is None:
        return ()
    ranks = tuple(value) if isinstance(value, Collection) and not isinstance(value, str) else (value,)
    if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
        raise SpecError.of(axis, value, "it is neither a rank nor a list of ranks", "0, [0, 1], or None to print nowhere")
    return ranks


def _write(text: str) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console().print(Text(PREFIX, style="dim") + Text(text), soft_wrap=True)
    else:
        sys.stdout.write(f"{PREFIX}{text}\n")
        sys.stdout.flush()
