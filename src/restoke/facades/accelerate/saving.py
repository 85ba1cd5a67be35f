"""Saving and loading: the whole state as one checkpoint, hooks around it, weights alone, and single objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from restoke import comm
from restoke.data import skip_first_batches
from restoke.errors import CheckpointError
from restoke.facades.accelerate import bare
from restoke.facades.accelerate.access import Access
from restoke.facades.accelerate.book import Book
from restoke.facades.accelerate.meeting import meet
from restoke.facades.accelerate.trained import trained_of
from restoke.facades.accelerate.weights import save_object, save_weights
from restoke.stopping import joint

Hook = Callable[..., None]


class Saving(Access):
    """Verbs that write or read files. All but `save` are collective."""

    _book: Book
    _patience: float
    _save_hooks: dict[int, Hook]
    _load_hooks: dict[int, Hook]

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **kwargs: Any
    ) -> str:
        """Write all that it takes to go on, as a checkpoint at `output_dir`, and return its path. Every rank calls this.

        With automatic naming it is the next one in `project_dir/checkpoints`. Tensors are safetensors, and nothing is pickled,
        whatever `safe_serialization` says.

        Raises:
            SessionError: some rank does not call it within the time-out: it is named.
            CheckpointError: it cannot be written, or nothing says where to; what was saved before is untouched.
        """
        meet("save_state", self.world, self._patience)
        configuration = self.project_configuration
        automatic = configuration.automatic_checkpoint_naming
        path = self._agreed(self._next() if automatic else _path(output_dir, "output_dir"))
        if path.is_dir() and self.world.is_main:
            with suppress(OSError):  # one that is not empty stays, and is refused unless it is a checkpoint
                path.rmdir()
        if automatic:
            configuration.iteration += 1  # as it is when the next one is saved
        try:
            self._write(path, configuration.total_limit if automatic else None)
        except BaseException:
            configuration.iteration -= automatic
            raise
        if self._save_hooks:
            models = [trained.parts.model for trained in self._held.trained]
            weights = [trained.session.full_state_dict() for trained in self._held.trained]
            for hook in self._save_hooks.values():
                hook(models, weights, str(path))
            self.wait_for_everyone()
        return str(path)

    def _write(self, path: Path, keep: int | None) -> None:
        sessions = self._sessions()
        with self._shown():
            if not sessions:
                bare.save(self._book, path.parent, path.name, self.world, keep)
            elif len(sessions) == 1:
                sessions["model"].save(path.parent, path.name, keep=keep)
            else:
                joint.save(sessions, path.parent, path.name, {}, keep)

    def load_state(
        self, input_dir: str | os.PathLike[str] | None = None, load_kwargs: Any = None, strict: bool = True, **kwargs: Any
    ) -> None:
        """Restore what `save_state` wrote, at any world size and under any strategy; the newest, where naming is automatic and
        no `input_dir` is given. Every rank calls this.

        Raises:
            SessionError: some rank does not call it within the time-out: it is named.
            CheckpointError: it is missing, damaged or foreign, or was saved with other objects.
        """
        meet("load_state", self.world, self._patience)
        sessions = self._sessions()
        automatic = input_dir is None and self.project_configuration.automatic_checkpoint_naming
        path = None if automatic else self._agreed(_path(input_dir, "input_dir"))
        models = [trained.parts.model for trained in self._held.trained]
        for hook in self._load_hooks.values():
            hook(models, str(path))
        kept = self._loaded_by_hooks(models)
        folder, tag = (self._checkpoints, None) if path is None else (path.parent, path.name)
        with self._shown():
            if not sessions:
                bare.load(self._book, folder, tag, self.world)
            elif len(sessions) == 1:
                sessions["model"].load(folder, tag, strict)
            else:
                joint.load(sessions, folder, strict, tag)
            for shell in self._held.shells.values():
                shell.push([optimizer.optimizer for optimizer in self._optimizers])
        for own, value in kept:
            own.copy_(value)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """The shells show the state that their optimizers have."""
        for shell in self._held.shells.values():
            shell.pull([optimizer.optimizer for optimizer in self._optimizers])
        try:
            yield
        finally:
            for shell in self._held.shells.values():
                shell.state.clear()

    def _loaded_by_hooks(self, left: list[nn.Module]) -> list[tuple[Tensor, Tensor]]:
        """The tensors of models that a hook took from the list, since it has loaded them itself."""
        taken = [t for t in self._held.trained if self._load_hooks and t.parts.model not in left]
        with torch.no_grad():
            own = [t.parts.layout.local(v.detach()) for t in taken for v in t.parts.module.state_dict(keep_vars=True).values()]
            return [(tensor, tensor.clone()) for tensor in own]

    def _agreed(self, path: Path) -> Path:
        """Rank 0's: a script may have made the name of a temporary folder on each."""
        return Path(comm.broadcast_json(str(path), self.world))

    def _sessions(self) -> dict[str, Any]:
        trained = self._held.trained
        if trained and "accelerate" not in trained[0].session.registered:
            trained[0].session.register("accelerate", self._book)
        return {f"model_{i}" if i else "model": each.session for i, each in enumerate(trained)}

    @property
    def _checkpoints(self) -> Path:
        folder = self.project_configuration.project_dir
        if folder is None:
            raise CheckpointError.of("project_dir", None, "automatic naming needs a place", "project_dir=, or output_dir=")
        return Path(folder, "checkpoints")

    def _next(self) -> Path:
        path = self._checkpoints / f"checkpoint_{self.project_configuration.iteration}"
        if path.exists():
            why = "a checkpoint of this name is there already, and is not overwritten"
            raise CheckpointError.of(
                "iteration", path.name, why, "load_state() first, ProjectConfiguration(iteration=), or delete it"
            )
        return path

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load these too: their `state_dict` must hold plain values and tensors.

        Raises:
            SessionError: one has no `state_dict` or `load_state_dict`.
        """
        self._book.add(objects)

    def register_save_state_pre_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(models, weights, output_dir)` is called on every rank when the checkpoint is in place, to add files to it."""
        return _added(self._save_hooks, hook)

    def register_load_state_pre_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(models, input_dir)` is called on every rank before loading; a model that it takes from the list keeps what the
        hook has loaded."""
        return _added(self._load_hooks, hook)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The model's whole state dict on the CPU, on every rank, by the script's own names. Every rank calls this."""
        trained = trained_of(model)
        return model.state_dict() if trained is None else trained.session.full_state_dict()

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the model's whole weights as `model.safetensors`, or in shards with an index. Every rank calls this.

        Raises:
            SessionError: some rank does not call it within the time-out.
            CheckpointError: they cannot be written.
        """
        meet("save_model", self.world, self._patience)
        weights = self.get_state_dict(model)
        if self.world.is_main:
            save_weights(weights, Path(save_directory), max_shard_size, safe_serialization)
        self.wait_for_everyone()

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write an object with torch.save, or a dict of tensors as safetensors: on rank 0, or with `save_on_each_node`
        on the first rank of each machine."""
        each = self.project_configuration.save_on_each_node
        if (self.world.local_rank if each else self.world.rank) == 0:
            save_object(obj, Path(f), safe_serialization)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """The loader without the first batches of the epoch that begins next; epochs after it are whole."""
        return skip_first_batches(dataloader, num_batches, world=self.world)


def _path(path: str | os.PathLike[str] | None, axis: str) -> Path:
    if path is None:
        instead = "a path, or ProjectConfiguration(automatic_checkpoint_naming=True)"
        raise CheckpointError.of(axis, None, "nothing says where the checkpoint is", instead)
    return Path(os.path.abspath(path))


def _added(hooks: dict[int, Hook], hook: Hook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
