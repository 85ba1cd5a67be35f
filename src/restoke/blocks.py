"""The blocks of a model: the layers that it repeats, by which it is sharded, recomputed and compiled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from restoke.errors import SpecError, nearest

Named = tuple[str, nn.Module]
Run = list[Named]  # siblings of one class
May = Callable[[nn.Module], bool]
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
ATOMIC = (nn.MultiheadAttention, nn.TransformerEncoderLayer)  # they use the weights of their parts without calling these
STAGES = 8  # of more siblings than these, none is a stage that has blocks of its own


def find_blocks(model: nn.Module, patterns: tuple[str, ...] = ()) -> list[Named]:
    """The blocks with their names, in the model's order; none lies within another.

    With `patterns`, the outermost modules whose names match. Else layers of one class that stand in a list or a Sequential
    together, the outermost such: an encoder's layers and a decoder's, a ResNet's bottlenecks. Of stages, which differ from
    each other and hold most of their weights in blocks, it is these blocks. In a model without such lists, parts of one class
    in attributes of one module count as well. A model that repeats nothing, or little of itself, has no blocks.

    Raises:
        SpecError: a pattern names no module that has parameters.
    """
    if patterns:
        return _named(model, patterns)
    runs = _runs("", model, _in_a_container) or _runs("", model, _siblings)
    total = sum(map(_size, runs))
    kinds = {type(run[0][1]) for run in runs if 20 * _size(run) > total}  # of a few small heads in a list, none is a block
    order = {id(module): i for i, module in enumerate(model.modules())}
    found = [block for run in runs if type(run[0][1]) in kinds for block in run]
    blocks = sorted(found, key=lambda block: order[id(block[1])])
    return blocks if 2 * _size(blocks) > _numel(model) - _largest_leaves(model) else []


def _in_a_container(module: nn.Module) -> bool:
    return isinstance(module, CONTAINERS)


def _siblings(module: nn.Module) -> bool:
    return True


def _runs(prefix: str, module: nn.Module, may: May) -> list[Run]:
    """The outermost runs in a module, in its order."""
    taken: dict[int, Run] = {}
    for run in _own_runs(prefix, module) if may(module) else ():
        taken |= {id(member): run for _, member in run}
    found: list[Run] = []
    for name, child in _children(prefix, module):
        if id(child) not in taken:
            found += _runs(name, child, may)
        elif (run := taken[id(child)])[0][1] is child:
            found += _blocks_of_stages(run, may) or [run]
    return found


def _own_runs(prefix: str, module: nn.Module) -> Iterator[Run]:
    kinds: dict[type[nn.Module], Run] = defaultdict(list)
    for name, child in _children(prefix, module):
        if next(child.children(), None) is not None and _numel(child):
            kinds[type(child)].append((name, child))
    return (run for run in kinds.values() if len(run) > 1 and _forward(run[0][1]))


def _blocks_of_stages(run: Run, may: May) -> list[Run]:
    """The runs within the members of a run, where these are stages; a stage of a single block is a block."""
    alike = max(Counter(map(_signature, run)).values())
    if 2 * alike >= len(run) or len(run) > STAGES:
        return []
    inner = [_runs(name, member, may) or [[(name, member)]] for name, member in run]
    held = sum(_size(each) for runs, (_, member) in zip(inner, run, strict=True) for each in runs if each[0][1] is not member)
    return [each for runs in inner for each in runs] if 2 * held > _size(run) else []


def _signature(named: Named) -> tuple[object, ...]:
    return tuple((name, tuple(p.shape)) for name, p in named[1].named_parameters())


def _children(prefix: str, module: nn.Module) -> Iterator[Named]:
    return ((f"{prefix}.{name}" if prefix else name, child) for name, child in module.named_children())


def cut_by_size(model: nn.Module, least: int) -> list[Named]:
    """Modules of `least` parameters at least, each the smallest such: what to gather at once in a model without blocks."""
    within = {
        part for module in model.modules() if isinstance(module, ATOMIC) for part in module.modules() if part is not module
    }
    found: list[Named] = []
    for name, module in _inner(model):
        whole_enough = _numel(module) >= least and _forward(module) and module not in within
        if whole_enough and not any(_numel(child) >= least for child in module.children() if child not in within):
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


def _largest_leaves(model: nn.Module) -> int:
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
