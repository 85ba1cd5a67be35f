"""What `save_state` keeps beside the sessions: loaders, schedulers, groups of optimizers, the window, the script's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from restoke.errors import CheckpointError, SessionError

if TYPE_CHECKING:
    from restoke.facades.accelerate.saving import Saving


@final
class Book:
    """Registered with the first session, under the name `accelerate`."""

    def __init__(self, face: Saving) -> None:
        self._face = face
        self.custom: list[Any] = []

    def add(self, things: tuple[Any, ...]) -> None:
        """Raises SessionError: one cannot be saved."""
        for thing in things:
            if not all(callable(getattr(thing, verb, None)) for verb in ("state_dict", "load_state_dict")):
                why = f"a {type(thing).__name__} lacks state_dict or load_state_dict"
                raise SessionError.of("register_for_checkpointing", type(thing).__name__, why, "an object that has both")
            if thing not in self.custom:
                self.custom.append(thing)

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors."""
        face = self._face
        return {
            "loaders": face._loaders.state_dict(),
            "schedulers": [_plain(scheduler.state_dict()) for scheduler in face._schedulers],
            "groups": [
                [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
                for optimizer in face._optimizers
            ],
            "custom": [thing.state_dict() for thing in self.custom],
            "micro": face._micro.state_dict(),
            "iteration": face.project_configuration.iteration,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError: it was saved with other numbers of objects."""
        face = self._face
        for name, mine in (("schedulers", face._schedulers), ("groups", face._optimizers), ("custom", self.custom)):
            if len(state[name]) != len(mine):
                kind = "optimizers" if name == "groups" else "registered objects" if name == "custom" else name
                why = f"this run has {len(mine)}"
                raise CheckpointError.of(kind, len(state[name]), why, "prepare and register what it was saved with")
        face._loaders.load_state_dict(state["loaders"])
        for scheduler, kept in zip(face._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(kept)
        for optimizer, groups in zip(face._optimizers, state["groups"], strict=True):
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)
        for thing, kept in zip(self.custom, state["custom"], strict=True):
            thing.load_state_dict(kept)
        face._micro.load_state_dict(dict(state["micro"]))
        face.project_configuration.iteration = state["iteration"]


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Without the functions and objects that schedulers put into their state, which the script makes again."""
    return {key: value for key, value in state.items() if not callable(value)}
