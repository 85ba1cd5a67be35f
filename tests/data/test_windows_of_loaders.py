"""Loaders that were taken over end a session's windows with their epoch; one inside another leaves them alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from restoke import OptimizerSpec, Session
from restoke.data import Loader, skip_first_batches, take_loader
from tests.data.dealing import Whole
from tests.data.loading import Numbers


def session_of(accumulate: int) -> Session:
    session = Session(accumulate=accumulate, device="cpu")
    session.prepare(nn.Linear(1, 1), OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    return session


def taken(session: Session, dataset: object) -> Loader:
    loaders = session.registered["loaders"]
    loader: Loader = loaders.add(take_loader(DataLoader(dataset, batch_size=1), world=session.world))  # type: ignore[arg-type]
    return loader


def windows(session: Session, loader: object, inner: Loader | None = None) -> list[bool]:
    """At which micro-batches a window ended; an evaluation runs in each step, and is left early."""
    ended = []
    for batch in loader:  # type: ignore[attr-defined]
        if inner is not None:
            for _ in inner:
                break
        ended.append(session.windows.ending)
        session.backward(session.forward(batch.float().reshape(1, 1)).sum())
        session.step()
    return ended


def test_the_last_window_ends_with_the_epoch_also_after_evaluations_that_were_left() -> None:
    for dataset in (Numbers(5), Whole(5)):
        session = session_of(2)
        train, evaluation = taken(session, dataset), taken(session, Numbers(3))
        for inner in (None, evaluation, evaluation):
            assert windows(session, train, inner) == [False, True, False, True, True]
        assert session.windows.loaders == []


def test_a_skipped_loader_ends_its_windows_too() -> None:
    session = session_of(2)
    train = taken(session, Numbers(5))
    assert windows(session, skip_first_batches(train, 2)) == [False, True, True]
    assert windows(session, train) == [False, True, False, True, True]


def test_a_loader_is_known_to_a_session_once() -> None:
    session = session_of(1)
    loader = taken(session, Numbers(3))
    session.registered["loaders"].add(loader)
    assert len(session.registered["loaders"].state_dict()["states"]) == 1
