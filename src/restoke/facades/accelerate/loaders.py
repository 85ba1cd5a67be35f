"""The loaders that `prepare` returns: this rank's share of the script's own, watched for the end of their epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import attrs

from restoke.data import BatchShare, Dealing, Loader, take_loader
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.plugins import DataLoaderConfiguration
from restoke.world import World


def dealing_of(config: DataLoaderConfiguration, rng_types: Sequence[Any] | None, placed: bool) -> Dealing:
    """How the batches of loaders are dealt to the ranks."""
    kinds: Any = ("generator",) if rng_types is None else tuple(str(kind) for kind in rng_types)
    return Dealing(
        split_batches=config.split_batches,
        even_batches=config.even_batches,
        dispatch_batches=config.dispatch_batches,
        use_seedable_sampler=config.use_seedable_sampler,
        data_seed=config.data_seed,
        non_blocking=config.non_blocking or None,
        rng_types=kinds,
        device_placement=placed,
    )


@final
class Loaders:
    """Those of one Accelerator, in the order in which they came, which is how a checkpoint knows them."""

    def __init__(self, world: World, micro: Micro, dealing: Dealing) -> None:
        self._world, self._micro, self.dealing = world, micro, dealing
        self.taken: list[tuple[Any, Loader]] = []
        self._awaiting: list[dict[str, Any]] = []  # states that were loaded before their loaders came

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
        if self._awaiting:
            made.load_state_dict(self._awaiting.pop(0))
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
            warnings.warn("overriding even_batches is only supported for map-style datasets", UserWarning, stacklevel=4)
        before = [share.even_batches for share in shares]
        try:
            for share in shares:
                share.even_batches = even
            yield
        finally:
            for share, was in zip(shares, before, strict=True):
                share.even_batches = was

    def state_dict(self) -> list[dict[str, Any]]:
        """Where each loader is in its epoch."""
        return [made.state_dict() for _, made in self.taken]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Put each loader where it was; those that come later, when they do."""
        self._awaiting = list(states[len(self.taken) :])
        for (_, made), state in zip(self.taken, states, strict=False):
            made.load_state_dict(state)
