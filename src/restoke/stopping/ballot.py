"""The vote on where to stop, in the store that all ranks share: every key is written once, so that all read the same."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, final

from restoke.errors import WorldError
from restoke.stopping.gate import NEVER

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LONGEST = 600.0  # seconds that a rank waits for the others at the boundary that all have agreed on
HERE, GONE = "here", "gone"


@final
class Ballot:
    """One rank's access to the vote called `name`. The store must be a client of its own: clients do one thing at a time."""

    def __init__(self, store: Store, name: str, rank: int, size: int) -> None:
        self._store, self._name, self._rank = store, name, rank
        self._votes = [f"{name}/vote/{other}" for other in range(size)]
        self._places = [f"{name}/place/{other}" for other in range(size)]
        self._leaves = [f"{name}/left/{other}" for other in range(size)]

    def ask(self) -> None:
        """Ask all ranks to stop."""
        self._store.set(f"{self._name}/asked", str(self._rank))

    def asked(self) -> bool:
        """Whether any rank has asked."""
        return self._store.check([f"{self._name}/asked"])

    def vote(self, boundary: int) -> None:
        """This rank can stop at this boundary and at every later one; NEVER where it has finished."""
        self._store.set(self._votes[self._rank], str(boundary))

    def complete(self) -> bool:
        """Whether every rank has voted."""
        return self._store.check(self._votes)

    def result(self) -> int:
        """The first boundary that all can stop at. Every rank computes the same."""
        return max(int(vote) for vote in self._store.multi_get(self._votes))

    def missing(self) -> tuple[int, ...]:
        """The ranks that have not voted."""
        return self._without(self._votes)

    def all_here(self) -> bool:
        """Wait at the boundary for all others: False where one had finished before it came here, so that none can stop.

        Raises:
            WorldError: a rank neither comes nor finishes.
        """
        self._store.set(self._places[self._rank], HERE)
        try:
            self._store.wait(self._places, timedelta(seconds=LONGEST))
        except RuntimeError as error:
            raise lacking(self._without(self._places), f"did not come to the agreed step within {LONGEST:.0f} s") from error
        return all(place == HERE.encode() for place in self._store.multi_get(self._places))

    def finished(self) -> None:
        """This rank comes to no further boundary."""
        if not self._store.check([self._places[self._rank]]):
            self._store.set(self._places[self._rank], GONE)
        if not self._store.check([self._votes[self._rank]]):
            self.vote(NEVER)

    def leave(self) -> None:
        """Wait until every rank is as far as to leave: whoever sees one gone might end the others."""
        self._store.set(self._leaves[self._rank], HERE)
        self._store.wait(self._leaves, timedelta(seconds=LONGEST))

    def _without(self, keys: list[str]) -> tuple[int, ...]:
        return tuple(rank for rank, key in enumerate(keys) if not self._store.check([key]))


def lacking(ranks: tuple[int, ...], what: str) -> Exception:
    """The error that names the ranks without which all cannot stop together."""
    named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    why = f"{named} {what}, and nothing can be saved without {'them' if len(ranks) > 1 else 'it'}"
    return WorldError.of("stop", "asked for", why, "see the log of that rank; what was saved before is untouched")
