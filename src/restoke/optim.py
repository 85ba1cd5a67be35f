"""Optimizers not built yet, so that a strategy can build them after it has wrapped or sharded the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, final

from attrs import field, frozen
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from restoke.errors import SpecError

# what a strategy may ask of a built optimizer is not done to it: it is built so, or not at all
_AS_BUILT = "it is built already: build it so in the script, or leave the axis optimizer out"


def _keywords(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError.of("optimizer_kwargs", value, "it is not a mapping of keywords", "{'lr': 0.1}")
    return value


def _groups(value: Any) -> tuple[Mapping[str, Any], ...]:
    several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    groups = tuple(value) if several else (value,)
    if not several or not all(isinstance(group, Mapping) for group in groups):
        raise SpecError.of("groups", value, "it is not a list of mappings", "[{'params': '*.bias', 'weight_decay': 0.0}]")
    return tuple({**group, "params": _patterns(group.get("params", ()))} for group in groups)


def _patterns(value: Any) -> tuple[str, ...]:
    given = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | Tensor) else (value,)
    for item in given:
        if not isinstance(item, str):
            why = "parameters are named in a group, since a strategy may make others of them"
            raise SpecError.of("groups.params", type(item).__name__, why, "a pattern over their names, such as 'head.*'")
    return given


@final
@frozen(eq=False, repr=False)
class Built:
    """An optimizer that was built before, the names of its groups' parameters, and its state by these names (`saved`)."""

    optimizer: Optimizer
    cls: Callable[..., Optimizer]
    kwargs: Mapping[str, Any]
    names: tuple[tuple[str, ...], ...]
    saved: Any = None

    def onto(self, named: Iterable[tuple[str, Parameter]]) -> Optimizer:
        """The same object, whose groups hold the parameters of these names, and whose state waits in `saved`."""
        parameters = dict(named)
        for group, names in zip(self.optimizer.param_groups, self.names, strict=True):
            group["params"] = [parameters[name] for name in names]
        if self.saved is not None:
            self.optimizer.state.clear()
        return self.optimizer


@final
@frozen(eq=False, repr=False)
class OptimizerSpec:
    """An optimizer's class and keywords, and its parameter groups by name pattern.

    `groups` are mappings with `params`, one or several shell patterns over the model's own parameter names (`*.bias`),
    and the options of that group. A parameter goes to the first group that names it; the rest form the last group.
    `built` is an optimizer to take instead of a new one (see `restoke.undoing`).
    """

    cls: Callable[..., Optimizer]
    kwargs: Mapping[str, Any] = field(factory=dict, converter=_keywords)
    groups: tuple[Mapping[str, Any], ...] = field(default=(), converter=_groups)
    built: Built | None = None

    def build(self, named: Iterable[tuple[str, Parameter]]) -> Optimizer:
        """The optimizer over these, in their order. Raises SpecError: a pattern names none, or it cannot be built."""
        if self.built is not None:
            if self.cls is not self.built.cls or self.kwargs != self.built.kwargs:
                raise SpecError.of("optimizer", type(self.built.optimizer).__name__, "a change was declared", _AS_BUILT)
            return self.built.onto(named)
        named = list(named)
        parameters = self._grouped(named) if self.groups else [p for _, p in named]
        name = getattr(self.cls, "__name__", str(self.cls))
        try:
            optimizer = self.cls(parameters, **self.kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpecError.of(
                "optimizer_kwargs", dict(self.kwargs), f"{name} refuses them ({error})", "see its signature"
            ) from error
        if needed := required(optimizer.step):
            why = f"its step needs {', '.join(needed)}, to run the model again: a micro-batch has one forward and one backward"
            raise SpecError.of("optimizer", name, why, "an optimizer whose step() needs nothing")
        return optimizer

    def _grouped(self, named: list[tuple[str, Parameter]]) -> list[dict[str, Any]]:
        left, groups = dict(named), []
        for options in self.groups:
            patterns = options["params"]
            taken = [name for name in left if any(fnmatchcase(name, pattern) for pattern in patterns)]
            if not taken:
                names = ", ".join(name for name, _ in named[:4])
                raise SpecError.of(
                    "groups.params", patterns, "no parameter that is left has such a name", f"names such as {names}"
                )
            groups.append({**options, "params": [left.pop(name) for name in taken]})
        return [*groups, {"params": list(left.values())}] if left else groups


def build_scheduler(make: Callable[[Optimizer], Any], optimizer: Optimizer) -> Any:
    """The scheduler on this optimizer. Raises SpecError: it cannot be made so, or cannot step by itself."""
    if not callable(make):
        raise SpecError.of("scheduler", make, "it is no function of the optimizer", "lambda optimizer: StepLR(optimizer, 10)")
    scheduler = make(optimizer)
    if needed := required(scheduler.step):
        name = type(scheduler).__name__
        why = f"its step needs {', '.join(needed)}, which an optimizer step does not know"
        raise SpecError.of("scheduler", name, why, "build it on session.parts.optimizer, and step it where you measure")
    return scheduler


def required(function: Callable[..., Any]) -> list[str]:
    """The positional parameters that a call cannot leave out."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
