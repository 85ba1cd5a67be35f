"""The loaders of a session: made for its world, watched for the end of their epoch, and saved with their position."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from restoke.data import Loader
    from restoke.session import Session


@final
class Loaders:
    """In the order in which they were made, which is how a checkpoint knows them; one that is made after the checkpoint was
    loaded takes up its position all the same."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: list[weakref.ref[Loader]] = []
        self._awaiting: dict[int, Any] = {}

    def make(self, dataset: Any, **options: Any) -> Loader:
        """A loader of this rank's share. Raises DataError: the options cannot be obeyed."""
        from restoke.data import make_loader  # only scripts that make loaders wait for it

        session = self._session
        return self.add(make_loader(dataset, world=session.world, seed=session.spec.seed, **options))

    def add(self, loader: Loader) -> Loader:
        """Watch a loader for the end of its epoch, and save its position; twice is once."""
        if any(reference() is loader for reference in self._made):
            return loader
        loader.watch(self._session.windows)
        if (state := self._awaiting.pop(len(self._made), None)) is not None:
            loader.load_state_dict(state)
        self._made.append(weakref.ref(loader))
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Where each loader is in its epoch; None for one that is gone."""
        loaders = [reference() for reference in self._made]
        return {"states": [None if loader is None else loader.state_dict() for loader in loaders]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put each loader where it was; those not made yet, when they are."""
        self._awaiting = {index: saved for index, saved in enumerate(state["states"]) if saved is not None}
        for index, reference in enumerate(self._made):
            loader, saved = reference(), self._awaiting.pop(index, None)
            if loader is not None and saved is not None:
                loader.load_state_dict(saved)
