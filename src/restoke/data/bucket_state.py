"""What a saved position in a bucketed epoch must hold to be continued."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from restoke.data.bucket_input import whole
from restoke.data.bucket_plan import Leg
from restoke.errors import DataError, Problem


def check_settings(state: Mapping[str, Any], settings: Mapping[str, int | bool]) -> None:
    """Refuse a state that is no state, or was taken with other settings; every difference is named."""
    missing = [name for name in (*settings, "epoch", "position", "legs", "fingerprint") if name not in state]
    if missing:
        raise DataError.of("state", sorted(state), f"it lacks {', '.join(missing)}", "what state_dict returned")
    problems = [
        Problem(name, own, f"the state was taken with {state[name]!r}", f"the same {name}, or set_epoch for a whole epoch")
        for name, own in settings.items()
        if state[name] != own
    ]
    if problems:
        raise DataError(*problems)


def read_legs(state: Mapping[str, Any]) -> tuple[int, tuple[Leg, ...]]:
    """The epoch, and its legs in which anything was taken.

    Raises:
        DataError: they are no legs, do not end whole slices, or do not make up `position`.
    """
    instead = "what state_dict returned"
    epoch = whole("epoch", state["epoch"], 0, None, "epochs count from 0", instead)
    try:
        legs = tuple(Leg(operator.index(size), operator.index(taken)) for size, taken in state["legs"])
    except (TypeError, ValueError) as error:
        raise DataError.of("legs", state["legs"], "they are no pairs of whole numbers", instead) from error
    if any(leg.slice_size < 1 or leg.taken < 0 or leg.taken % leg.slice_size for leg in legs):
        raise DataError.of("legs", state["legs"], "not each is a number of whole slices", instead)
    if sum(leg.taken for leg in legs) != state["position"]:
        raise DataError.of("position", state["position"], f"the legs {state['legs']} do not make it up", instead)
    return epoch, tuple(leg for leg in legs if leg.taken)
