"""The loaders that `prepare` returns: this rank's share of the script's own, watched for the end of their epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import attrs

from restoke.data import BatchShare, Dealing, Loader, take_loader
from restoke.facades.accelerate.micro import Micro
from restoke.said import say_once
from restoke.world import World


@final
class Loaders:
    """Those of one Accelerator, in the order in which they came, which is how a checkpoint knows them."""

    def __init__(self, world: World, micro: Micro, dealing: Dealing) -> None:
        self._world, self._micro, self.dealing = world, micro, dealing
        self.taken: list[tuple[Any, Loader]] = []

    def take(self, loader: Any, placed: bool) -> Loader:
        """The loader of this rank's share. Twice is once.

        Raises:
            DataError: it cannot be dealt as declared.
        """
        for given, known in self.taken:
            if loader is given or loader is known:
                return known
        made = take_loader(loader, world=self._world, dealing=attrs.evolve(self.dealing, device_placement=placed))
        self._micro.watch(made)
        self.taken.append((loader, made))
        return made

    def deal(self, **changes: Any) -> None:
        """Change the rules for loaders that are taken from now on."""
        self.dealing = attrs.evolve(self.dealing, **changes)

    def forget(self) -> None:
        """None is known any more."""
        self.taken.clear()

    @contextmanager
    def overriding(self, even: bool) -> Iterator[None]:
        """Within it, loaders of indexed datasets deal evenly or not."""
        shares = [made.batch_sampler for _, made in self.taken if isinstance(made.batch_sampler, BatchShare)]
        if len(shares) < len(self.taken):
            say_once("even_batches is overridden for loaders of indexed datasets alone")
        before = [share.even_batches for share in shares]
        try:
            for share in shares:
                share.even_batches = even
            yield
        finally:
            for share, was in zip(shares, before, strict=True):
                share.even_batches = was
