"""Begins an epoch behind its first batches, and leaves all else as the loader has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from torch.utils.data import DataLoader

from restoke.data.loader import Loader
from restoke.data.make import take_loader
from restoke.errors import DataError
from restoke.world import World


@final
class Skipped:
    """A loader whose next iteration leaves out the first `skip` batches of the epoch that is due; those after it are whole.

    All else is the loader's, which goes on with it: its epochs, its place, what it shows of a batch.
    """

    def __init__(self, loader: Loader, skip: int) -> None:
        self.loader, self.pending = loader, skip

    def __iter__(self) -> Iterator[Any]:
        skip, self.pending = self.pending, 0
        return self.loader.iterate(skip)

    def __len__(self) -> int:
        return max(len(self.loader) - self.pending, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def skip_first_batches(loader: Loader | Skipped | DataLoader[Any], batches: int = 0, *, world: World | None = None) -> Skipped:
    """The loader, whose next iteration begins `batches` batches of this rank later. Of an indexed dataset none of them is
    loaded; a stream is read up to there. A DataLoader is first taken for `world`.

    Raises:
        DataError: `batches` is no number of batches, or a DataLoader comes without a world.
    """
    if batches < 0:
        raise DataError.of("num_batches", batches, "it is no number of batches", "a whole number from 0 on")
    if isinstance(loader, Skipped):
        return Skipped(loader.loader, loader.pending + batches)
    if isinstance(loader, Loader):
        return Skipped(loader, batches)
    if world is None:
        raise DataError.of("world", None, "a DataLoader does not know its ranks", "world=session.world, or a loader")
    return Skipped(take_loader(loader, world=world), batches)
