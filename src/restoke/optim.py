"""Optimizers not built yet, so that a strategy can build them after it has wrapped or sharded the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, final

from attrs import field, frozen
from torch.nn import Parameter
from torch.optim import Optimizer

from restoke.errors import SpecError


@final
@frozen(eq=False, repr=False)
class OptimizerSpec:
    """An optimizer's class and keywords, and its parameter groups by name pattern.

    `groups` are mappings with `params`, one or several shell patterns over the model's own parameter names (`*.bias`),
    and the options of that group. A parameter goes to the first group that names it; the rest form the last group.
    """

    cls: Callable[..., Optimizer]
    kwargs: Mapping[str, Any] = field(factory=dict)
    groups: tuple[Mapping[str, Any], ...] = field(default=(), converter=tuple)

    def build(self, named: Iterable[tuple[str, Parameter]]) -> Optimizer:
        """The optimizer over these, in their order. Raises SpecError: a pattern names none, or it cannot be built."""
        named = list(named)
        parameters = self._grouped(named) if self.groups else [p for _, p in named]
        try:
            return self.cls(parameters, **self.kwargs)
        except (TypeError, ValueError) as error:
            name = getattr(self.cls, "__name__", str(self.cls))
            raise SpecError.of(
                "optimizer_kwargs", dict(self.kwargs), f"{name} refuses them ({error})", "see its signature"
            ) from error

    def _grouped(self, named: list[tuple[str, Parameter]]) -> list[dict[str, Any]]:
        left, groups = dict(named), []
        for options in self.groups:
            patterns = options.get("params", ())
            patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
            taken = [name for name in left if any(fnmatchcase(name, pattern) for pattern in patterns)]
            if not taken:
                names = ", ".join(name for name, _ in named[:4])
                raise SpecError.of(
                    "groups.params", patterns, "no parameter that is left has such a name", f"names such as {names}"
                )
            groups.append({**options, "params": [left.pop(name) for name in taken]})
        return [*groups, {"params": list(left.values())}] if left else groups
