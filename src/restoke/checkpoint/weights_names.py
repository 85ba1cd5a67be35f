"""The names in a file of weights as the user's model has them: what wrappers put before them is removed, and said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from attrs import evolve

from restoke.checkpoint.weights_files import Found
from restoke.errors import CheckpointError

WRAPPED = "module."  # DistributedDataParallel, DataParallel and DeepSpeed hold the model under this name
COMPILED = "_orig_mod."  # torch.compile likewise; it may wrap a module within the model
T = TypeVar("T")


def own_names(found: Found, names: Collection[str]) -> Found:
    """With the prefixes of wrappers removed. `module.` stays where the model's own `names`, as far as they are known, have it.

    Raises:
        CheckpointError: two tensors would have one name.
    """
    known = {name.replace(COMPILED, "") for name in names}
    if any(COMPILED in name for name in found.tensors):
        found = _renamed(found, lambda name: name.replace(COMPILED, ""), f"{COMPILED!r} (of torch.compile) was removed")
    while found.tensors and all(name.startswith(WRAPPED) for name in found.tensors) and not known & found.tensors.keys():
        found = _renamed(found, lambda name: name.removeprefix(WRAPPED), f"{WRAPPED!r} (of a wrapper such as DDP) was removed")
    return found


def _renamed(found: Found, rename: Callable[[str], str], note: str) -> Found:
    return evolve(
        found,
        tensors=_keys(found.tensors, rename),
        aliases={rename(name): rename(owner) for name, owner in found.aliases.items()},
        extra=_keys(found.extra, rename),
        notes=[*found.notes, f"{note} from the names in {found.called}"],
    )


def _keys(named: Mapping[str, T], rename: Callable[[str], str]) -> dict[str, T]:
    renamed: dict[str, Any] = {}
    for name, value in named.items():
        if rename(name) in renamed:
            why = f"without the prefixes of wrappers, two tensors are called {rename(name)}"
            raise CheckpointError.of("weights", name, why, "a file of one model")
        renamed[rename(name)] = value
    return renamed
