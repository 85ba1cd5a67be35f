"""The blocks of a model: the layers that it repeats, by which it is sharded, recomputed and compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import nn

from restoke.errors import SpecError, nearest

Named = tuple[str, nn.Module]


def find_blocks(model: nn.Module, patterns: tuple[str, ...] = ()) -> list[Named]:
    """The blocks with their names, in the model's order; none lies within another.

    With `patterns`, the outermost modules whose names match. Else the class of module whose instances repeat, do not
    contain the whole and hold the most parameters of all that do: an encoder's layers, a ResNet's bottlenecks. A model that
    repeats nothing has no blocks.

    Raises:
        SpecError: a pattern names no module that has parameters.
    """
    if patterns:
        return _named(model, patterns)
    kinds: dict[type[nn.Module], list[Named]] = defaultdict(list)
    for name, module in _inner(model):
        if next(module.children(), None) is not None and _forward(module):
            kinds[type(module)].append((name, module))
    repeated = {kind: _outermost(found) for kind, found in kinds.items()}
    best = max((found for found in repeated.values() if len(found) > 1), key=_size, default=[])
    return best if best and 2 * _size(best) > _numel(model) - _largest_leaf(model) else []


def cut_by_size(model: nn.Module, least: int) -> list[Named]:
    """Modules of `least` parameters at least, each the smallest such: what to gather at once in a model without blocks."""
    found: list[Named] = []
    for name, module in _inner(model):
        whole_enough = _numel(module) >= least and _forward(module)
        if whole_enough and not any(_numel(child) >= least for child in module.children()):
            found.append((name, module))
    return found


def _inner(model: nn.Module) -> Iterator[Named]:
    return ((name, module) for name, module in model.named_modules() if module is not model)


def _forward(module: nn.Module) -> bool:
    """Containers whose parts are called one by one (ModuleList, ModuleDict) have none of their own."""
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _size(named: list[Named]) -> int:
    return sum(_numel(module) for _, module in named)


def _largest_leaf(model: nn.Module) -> int:
    """An embedding may outweigh all blocks of a small model, and does not make them less its blocks."""
    sizes = sorted((_numel(m) for m in model.modules() if next(m.children(), None) is None), reverse=True)
    return sum(sizes[:2])


def _outermost(named: list[Named]) -> list[Named]:
    names = {name for name, _ in named}
    return [(name, module) for name, module in named if not any(up in names for up in _ancestors(name))]


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _named(model: nn.Module, patterns: tuple[str, ...]) -> list[Named]:
    modules = [(name, module) for name, module in _inner(model) if _forward(module)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in modules):
            raise SpecError.of("blocks", pattern, "no module of the model has such a name", nearest(pattern, dict(modules)))
    return _outermost([(name, m) for name, m in modules if any(fnmatchcase(name, pattern) for pattern in patterns)])
