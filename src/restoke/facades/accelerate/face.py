"""Accelerate's `Accelerator`: what its two forms, the new and the one for scripts that were written for it, have in common."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from restoke.errors import SpecError
from restoke.facades.accelerate.backward import Backward
from restoke.facades.accelerate.book import Book
from restoke.facades.accelerate.declare import Handlers, spec_of
from restoke.facades.accelerate.group import wait_at_most
from restoke.facades.accelerate.loaders import Loaders, dealing_of
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.models import Models
from restoke.facades.accelerate.plugins import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    ProjectConfiguration,
)
from restoke.facades.accelerate.state import AcceleratorState, GradientState, PartialState
from restoke.facades.accelerate.tracking import Tracking
from restoke.session import Session
from restoke.spec import Spec
from restoke.world import World


class Face(Tracking):
    """See `Accelerator`. `HABITS` are those that Accelerate taught its scripts: schedulers step once per process and call,
    and short windows are divided as full ones."""

    HABITS: ClassVar[bool] = False

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool | None = None,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: Sequence[Any] | None = None,
        log_with: Any = None,
        project_dir: Any = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Iterable[Any] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: Any = None,
        deepspeed_plugins: Any = None,
        parallelism_config: Any = None,
        *,
        fp16: bool | None = None,
        spec: Spec | Any = None,
        **unknown: Any,
    ) -> None:
        _refuse_unknown(unknown)
        one = _one_of
        engine = one(
            deepspeed_plugin=deepspeed_plugin,
            deepspeed_plugins=deepspeed_plugins,
            fsdp_plugin=fsdp_plugin,
            torch_tp_plugin=torch_tp_plugin,
            megatron_lm_plugin=megatron_lm_plugin,
            parallelism_config=parallelism_config,
        )
        self._handlers = Handlers.read(kwargs_handlers)
        plugin = _accumulation(gradient_accumulation_steps, gradient_accumulation_plugin)
        declared, made = spec_of(
            cpu=cpu,
            mixed_precision=one(mixed_precision=mixed_precision, fp16="fp16" if fp16 else None),
            accumulation=plugin,
            engine=engine,
            handlers=self._handlers,
            dynamo=one(dynamo_backend=dynamo_backend, dynamo_plugin=dynamo_plugin),
            base=spec,
        )
        self.session = session = Session(declared)
        self._patience = wait_at_most(self._handlers.get(InitProcessGroupKwargs).timeout)
        plugin.num_steps = session.spec.accumulate
        self._micro = Micro(plugin, full=self.HABITS, several=session.world.size > 1)
        session.windows = self._micro.windows
        self._held = Models(session, self._micro, made.block_classes)
        self._backward = Backward(session, self._held, self._micro)
        self._config = dataloader_config or DataLoaderConfiguration()
        if split_batches is not None:
            self._config.split_batches = split_batches
        self._loaders = Loaders(session.world, self._micro, dealing_of(self._config, rng_types, device_placement))
        self._optimizers, self._schedulers, self._placed = [], [], {}
        self.device_placement, self.step_scheduler_with_optimizer = device_placement, step_scheduler_with_optimizer
        self.rng_types = rng_types
        self.project_configuration = _project(project_dir, project_config)
        self._book, self._save_hooks, self._load_hooks = Book(self), OrderedDict(), OrderedDict()
        self.trackers, self.log_with = [], self._read_trackers(log_with)
        self.gradient_state = GradientState(micro=self._micro)
        self._share()

    def _share(self) -> None:
        """The states speak of the last Accelerator that was made."""
        for kept in (PartialState._shared_state, AcceleratorState._shared_state):
            kept["session"] = self.session
        GradientState._shared_state["micro"] = self._micro
        self.state = AcceleratorState()

    def _check_state(self) -> None:
        self.state.world  # noqa: B018 - raises

    def __reduce__(self) -> tuple[Any, ...]:
        _LIVE[id(self)] = self
        return _again, (type(self), id(self), os.getpid(), self.session.spec.declared())

    @property
    def world(self) -> World:
        return self.session.world

    @property
    def _scheduler_steps(self) -> int:
        return self.world.size if self.HABITS and not self._config.split_batches else 1

    def __deepcopy__(self, memo: Any) -> Self:
        return self


_LIVE: weakref.WeakValueDictionary[int, Face] = weakref.WeakValueDictionary()


def _again(cls: type[Face], key: int, process: int, spec: dict[str, Any]) -> Face:
    """In the process that pickled it, the same Accelerator; in another one, one of the same declaration."""
    live = _LIVE.get(key) if process == os.getpid() else None
    return cls(spec=spec) if live is None else live


def _one_of(**given: Any) -> Any:
    """The one that is given. Raises SpecError: two are."""
    named = [(name, value) for name, value in given.items() if value is not None]
    if len({str(value) for _, value in named}) > 1:
        (name, value), (other, _) = named[:2]
        raise SpecError.of(name, value, f"{other} was given as well", "one of the two")
    return named[0][1] if named else None


def _refuse_unknown(unknown: dict[str, Any]) -> None:
    moved = DataLoaderConfiguration().__dict__
    for name, value in unknown.items():
        why = "it is a field of DataLoaderConfiguration" if name in moved else "there is no such keyword"
        instead = f"dataloader_config=DataLoaderConfiguration({name}={value!r})" if name in moved else "see help(Accelerator)"
        raise SpecError.of(name, value, why, instead)


def _accumulation(steps: int, plugin: GradientAccumulationPlugin | None) -> GradientAccumulationPlugin:
    if plugin is None:
        return GradientAccumulationPlugin(num_steps=steps)
    if steps != 1 and plugin.num_steps not in (None, steps):
        why = f"the plugin says num_steps={plugin.num_steps}"
        raise SpecError.of("gradient_accumulation_steps", steps, why, "one of the two")
    return GradientAccumulationPlugin(
        plugin.num_steps or steps, plugin.adjust_scheduler, plugin.sync_with_dataloader, plugin.sync_each_batch
    )


def _project(folder: Any, config: ProjectConfiguration | None) -> ProjectConfiguration:
    made = config or ProjectConfiguration(project_dir=folder)
    if folder is not None and made.project_dir is None:
        made.set_directories(folder)
    return made
