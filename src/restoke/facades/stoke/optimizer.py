"""Optimizers and schedulers as Stoke's scripts declare them: a class and its keywords, as a plain mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from torch.optim import Optimizer

from restoke.errors import SpecError, nearest
from restoke.optim import OptimizerSpec, required


class StokeOptimizer(TypedDict):
    """An optimizer not built yet. Each of `groups` is a mapping with `params`, a pattern or patterns over the model's own
    parameter names (`"*.bias"`), and the options of that group; parameters that no pattern names form the last group."""

    optimizer: Callable[..., Optimizer]
    optimizer_kwargs: NotRequired[Mapping[str, Any]]
    groups: NotRequired[Sequence[Mapping[str, Any]]]


class StokeScheduler(TypedDict):
    """A learning-rate scheduler not built yet: built after the optimizer, stepped once after each of its steps."""

    scheduler: Callable[..., Any]
    scheduler_kwargs: NotRequired[Mapping[str, Any]]


def read_optimizer(given: Any) -> OptimizerSpec:
    """What a StokeOptimizer says. Raises SpecError: it is no such mapping."""
    example = "StokeOptimizer(optimizer=SGD, optimizer_kwargs={'lr': 0.1})"
    keys = _keys(given, "optimizer", ("optimizer", "optimizer_kwargs", "groups"), example)
    cls = keys["optimizer"]
    if not callable(cls) or (isinstance(cls, type) and not issubclass(cls, Optimizer)):
        raise SpecError.of("optimizer", cls, "it is not a class of optimizers", example)
    kwargs = _mapping(keys.get("optimizer_kwargs"), "optimizer_kwargs", "{'lr': 0.1}")
    return OptimizerSpec(cls, kwargs, keys.get("groups") or ())


def read_scheduler(given: Any) -> Callable[[Optimizer], Any] | None:
    """What builds the scheduler that a StokeScheduler says. Raises SpecError: it is no such mapping."""
    if given is None:
        return None
    example = "StokeScheduler(scheduler=StepLR, scheduler_kwargs={'step_size': 10})"
    keys = _keys(given, "scheduler", ("scheduler", "scheduler_kwargs"), example)
    cls = keys["scheduler"]
    if not callable(cls):
        raise SpecError.of("scheduler", cls, "it is not a class of schedulers", example)
    kwargs = _mapping(keys.get("scheduler_kwargs"), "scheduler_kwargs", "{'step_size': 10}")

    def build(optimizer: Optimizer) -> Any:
        name = getattr(cls, "__name__", str(cls))
        try:
            scheduler = cls(optimizer, **kwargs)
        except (TypeError, KeyError, ValueError) as error:
            instead = "see its signature; some read the optimizer's keywords"
            raise SpecError.of("scheduler_kwargs", dict(kwargs), f"{name} refuses them ({error})", instead) from error
        _refuse_metrics(scheduler, name)
        return scheduler

    return build


def _refuse_metrics(scheduler: Any, name: str) -> None:
    if needed := required(scheduler.step):
        why = f"its step needs {', '.join(needed)}, which an optimizer step does not know"
        instead = f"scheduler = {name}(stoke.optimizer), and scheduler.step(...) where you measure"
        raise SpecError.of("scheduler", name, why, instead)


def _keys(given: Any, axis: str, known: tuple[str, ...], example: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        built = "it is built already, and would not know the wrapped or sharded parameters"
        why = built if isinstance(given, Optimizer) else f"it is no Stoke{axis.title()}"
        raise SpecError.of(axis, type(given).__name__, why, example)
    for name in given:
        if name not in known:
            raise SpecError.of(f"{axis}.{name}", given[name], "there is no such key", nearest(name, known))
    if axis not in given:
        raise SpecError.of(f"{axis}.{axis}", None, "the class is missing", example)
    return given


def _mapping(value: Any, axis: str, example: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError.of(axis, value, "it is not a mapping of keywords", example)
    return value
