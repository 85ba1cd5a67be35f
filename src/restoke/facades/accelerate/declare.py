"""The spec of an `Accelerator(...)` call: its keywords, plugins and handlers, each obeyed or refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import field, frozen

from restoke.configs import AMPConfig, DDPConfig
from restoke.errors import SpecError, nearest
from restoke.facades.accelerate.engines import Engine, engine_of
from restoke.facades.accelerate.plugins import (
    AORecipeKwargs,
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from restoke.spec import Spec

PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
HOOKS = {"no": None, "fp16": "fp16", "bf16": "bf16", "power_sgd": "powersgd"}
DYNAMO = {"mode": "default", "fullgraph": False, "dynamic": None, "options": None, "disable": False}
HANDLERS = (
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    AutocastKwargs,
    ProfileKwargs,
    AORecipeKwargs,
)


@frozen(kw_only=True)
class Handlers:
    """The handlers by class, at most one of each."""

    given: Mapping[type, Any] = field(factory=dict)

    def get(self, kind: type) -> Any:
        """The handler of this class; its defaults where none was given."""
        return self.given.get(kind) or kind()

    @classmethod
    def read(cls, handlers: Iterable[Any] | None) -> Handlers:
        """Raises SpecError: one is no handler, one is given twice, or one asks for what cannot be done."""
        found: dict[type, Any] = {}
        for handler in handlers or ():
            kind = type(handler)
            if not isinstance(handler, KwargsHandler) or kind not in HANDLERS:
                names = ", ".join(each.__name__ for each in HANDLERS)
                raise SpecError.of("kwargs_handlers", kind.__name__, "it is no handler that is known", f"one of: {names}")
            if kind in found:
                raise SpecError.of("kwargs_handlers", kind.__name__, "it is given twice", "give it once")
            found[kind] = handler
        return cls(given=found)


def spec_of(
    *,
    cpu: bool,
    mixed_precision: str | None,
    accumulation: GradientAccumulationPlugin,
    engine: Any,
    handlers: Handlers,
    dynamo: Any,
    base: Any,
) -> tuple[Spec, Engine]:
    """The spec that they declare together, and what the engine's plugin says beside it.

    Raises:
        SpecError: one asks for what cannot be done, or two contradict each other.
    """
    start, made = _base(base), engine_of(engine)
    declared: dict[str, Any] = dict(made.axes)
    if cpu:
        declared["device"] = "cpu"
    if mixed_precision is not None:
        declared["precision"] = precision_of(mixed_precision)
    if accumulation.num_steps not in (None, 1):
        _once(declared, "accumulate", accumulation.num_steps)
    if dynamo is not None:
        declared["compile"] = _compile(dynamo)
    settings = {type(item): item for item in (*start.settings, *made.settings, *_settings(handlers))}
    return attrs.evolve(start, **declared, settings=tuple(settings.values())), made


def _once(declared: dict[str, Any], axis: str, value: Any) -> None:
    if declared.get(axis, value) != value:
        why = f"the plugin says {declared[axis]}"
        raise SpecError.of("gradient_accumulation_steps", value, why, "one of the two")
    declared[axis] = value


def precision_of(word: Any) -> str:
    """Our word for Accelerate's. Raises SpecError: there is no such precision."""
    name = str(word).lower()
    if name not in PRECISIONS:
        instead = nearest(name, PRECISIONS)
        raise SpecError.of("mixed_precision", word, "there is no such precision", instead)
    return PRECISIONS[name]


def _base(base: Any) -> Spec:
    if base is None or isinstance(base, Spec):
        return base or Spec()
    if isinstance(base, Mapping):
        return Spec.of(base)
    if isinstance(base, str | os.PathLike):
        return Spec.read(base)
    raise SpecError.of("spec", base, "it is no declaration", "a Spec, the path of a YAML file, or a mapping")


def _compile(dynamo: Any) -> str:
    """Raises SpecError: another backend than inductor is asked for, or what it cannot be told."""
    backend = str(getattr(dynamo, "backend", dynamo)).upper().removeprefix("DYNAMOBACKEND.")
    if backend == "NO":
        return "none"
    if backend != "INDUCTOR":
        why = "torch.compile runs with its default backend here"
        raise SpecError.of("dynamo_backend", backend, why, "inductor, or torch.compile(model, backend=...) of your own")
    for name, usual in DYNAMO.items():
        if (value := getattr(dynamo, name, None)) not in (None, usual):
            why = "torch.compile runs with its defaults here"
            raise SpecError.of(f"dynamo_plugin.{name}", value, why, f"torch.compile(model, {name}=...) of your own")
    regional = getattr(dynamo, "use_regional_compilation", False)
    return "blocks" if regional else "model"


def _settings(handlers: Handlers) -> list[Any]:
    made: list[Any] = []
    ddp, group, scaler = (
        handlers.given.get(k) for k in (DistributedDataParallelKwargs, InitProcessGroupKwargs, GradScalerKwargs)
    )
    if ddp is not None or group is not None:
        made.append(_ddp(ddp or DistributedDataParallelKwargs(), group or InitProcessGroupKwargs()))
    if scaler is not None:
        made.append(_scaler(scaler))
    if (autocast := handlers.given.get(AutocastKwargs)) is not None:
        _refuse(
            "AutocastKwargs", autocast, {"enabled": True, "cache_enabled": None}, "mixed_precision='no', or autocast(handler)"
        )
    if (float8 := handlers.given.get(AORecipeKwargs)) is not None:
        _refuse("AORecipeKwargs", float8, attrs.asdict(AORecipeKwargs()), "mixed_precision='fp8' without it")
    return made


def _refuse(name: str, handler: Any, only: Mapping[str, Any], instead: str) -> None:
    """Raises SpecError where a field is not what alone is known here."""
    for key, value in only.items():
        if getattr(handler, key) != value:
            raise SpecError.of(f"{name}.{key}", getattr(handler, key), f"only {value!r} is known here", instead)


def _ddp(ddp: DistributedDataParallelKwargs, group: InitProcessGroupKwargs) -> DDPConfig:
    only = {"dim": 0, "check_reduction": False, "comm_wrapper": "no", "comm_state_option": {}}
    _refuse("DistributedDataParallelKwargs", ddp, only, "leave it out, or DDPConfig(comm_hook='module:function')")
    hook = str(ddp.comm_hook).lower()
    if hook not in HOOKS:
        raise SpecError.of("DistributedDataParallelKwargs.comm_hook", hook, "there is no such hook here", nearest(hook, HOOKS))
    return DDPConfig(
        broadcast_buffers=ddp.broadcast_buffers,
        bucket_cap_mb=ddp.bucket_cap_mb,
        find_unused_parameters=ddp.find_unused_parameters,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        static_graph=ddp.static_graph,
        comm_hook=HOOKS[hook],
        backend=group.backend or "nccl",
        init_method=group.init_method or "env://",
    )


def _scaler(scaler: GradScalerKwargs) -> AMPConfig:
    _refuse("GradScalerKwargs", scaler, {"enabled": True}, "mixed_precision='bf16', which scales no loss")
    return AMPConfig(
        init_scale=scaler.init_scale,
        growth_factor=scaler.growth_factor,
        backoff_factor=scaler.backoff_factor,
        growth_interval=scaler.growth_interval,
    )
