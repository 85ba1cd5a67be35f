"""Turns layers of a model into ones that a group of ranks shares, with the values that they have."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import final

import torch
from attrs import define, field, frozen
from torch import nn

from restoke.distributed.groups import Group, get_group
from restoke.distributed.messages import agree_
from restoke.distributed.shards import Shard
from restoke.errors import SpecError, nearest
from restoke.nn.owned import adopt
from restoke.nn.tags import checked_dim
from restoke.said import say_once

Shards = dict[str, Shard | None]
Names = str | Iterable[str] | None


@final
@frozen
class Kind:
    """What becomes of one of torch's layers: its counterpart, and the attributes that are its sizes."""

    ours: type[nn.Module]
    sizes: tuple[str, str]
    cut: Callable[[int, int, int | None, Group], Shards]

    def shards(self, layer: nn.Module, dim: int | None, group: Group) -> Shards:
        return self.cut(vars(layer)[self.sizes[0]], vars(layer)[self.sizes[1]], dim, group)


KINDS: dict[type[nn.Module], Kind] = {}  # each counterpart enters itself
COUNTERPARTS = ("restoke.nn.linear", "restoke.nn.embedding")  # which are loaded when they are asked for


def convert(model: nn.Module, kind: type[nn.Module], dim: int | None, names: Names, group: Group | None) -> nn.Module:
    """Every layer of the kind that the names choose, turned, and what shares its weight with it."""
    patterns = None if names is None else [names] if isinstance(names, str) else list(names)
    for place in COUNTERPARTS:
        importlib.import_module(place)
    conversion = _Conversion(model, kind, checked_dim(dim), get_group(group))
    return conversion.run(patterns)


@final
@define
class _Conversion:
    """One walk over a model."""

    model: nn.Module
    kind: type[nn.Module]
    dim: int | None
    group: Group
    made: dict[int, nn.Module] = field(factory=dict)  # by the id of the layer that it replaces
    parts: dict[int, tuple[nn.Parameter, nn.Parameter]] = field(factory=dict)  # by the id of the whole: it, and its part

    def run(self, patterns: list[str] | None) -> nn.Module:
        chosen = self._chosen(patterns)
        layers = {**chosen, **self._tied_to(chosen)}
        for layer in layers.values():
            if id(layer) not in self.made:
                self.made[id(layer)] = self._turned(layer)
        for name, layer in layers.items():
            if name:
                parent, _, attribute = name.rpartition(".")
                _replace(self.model.get_submodule(parent), attribute, self.made[id(layer)])
        return self.made.get(id(self.model), self.model)

    def _chosen(self, patterns: list[str] | None) -> dict[str, nn.Module]:
        """The layers to turn, by every name that they have."""
        found, done = {}, []
        for name, layer in self.model.named_modules(remove_duplicate=False):
            if patterns is not None and not any(fnmatchcase(name, pattern) for pattern in patterns):
                continue
            if type(layer) is self.kind and _is_usual(layer):
                found[name] = layer
            elif type(layer) is KINDS[self.kind].ours:
                self._check_done(name, layer, patterns)
                done.append(name)
            elif isinstance(layer, self.kind):
                said = f"{name} is a {type(layer).__name__} whose weight others read or make: it stays whole on every rank"
                say_once(said)
        self._check_patterns(patterns or [], [*found, *done])
        return found

    def _check_done(self, name: str, layer: nn.Module, patterns: list[str] | None) -> None:
        dim, group = vars(layer)["dim"], vars(layer)["group"]
        if _column(dim) == _column(self.dim) and group.ranks == self.group.ranks:
            return
        why = f"{name} is shared already, with dim={dim}, by ranks {group.ranks}"
        if patterns is not None:
            raise SpecError.of("dim", self.dim, why, "names that leave it out")
        say_once(f"{why}; it stays so")

    def _check_patterns(self, patterns: list[str], matched: list[str]) -> None:
        kinds = (self.kind, KINDS[self.kind].ours)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in matched):
                known = [name for name, layer in self.model.named_modules() if type(layer) in kinds]
                why = f"no {self.kind.__name__} that can be shared has such a name"
                raise SpecError.of("names", pattern, why, nearest(pattern, known) if known else "a model that has one")

    def _tied_to(self, chosen: dict[str, nn.Module]) -> dict[str, nn.Module]:
        """Layers that share what is cut of those; whatever else shares it cannot be turned, and is refused."""
        cut = {}
        for name, layer in chosen.items():
            shards = KINDS[self.kind].shards(layer, self.dim, self.group)
            cut.update({id(layer._parameters[each]): name for each, shard in shards.items() if shard is not None})
        cut.pop(id(None), None)
        tied = {}
        for name, layer in self.model.named_modules(remove_duplicate=False):
            shared = [each for each, param in layer._parameters.items() if id(param) in cut]
            if not shared or name in chosen:
                continue
            other = cut[id(layer._parameters[shared[0]])]
            if type(layer) not in KINDS or not _is_usual(layer) or shared[0] != "weight":
                why = f"it shares {name}.{shared[0]} with a {type(layer).__name__}, which needs it whole"
                raise SpecError.of("names", other, why, "untie them before, or names that leave it out")
            say_once(f"{name} shares its weight with {other}, and is shared by the ranks with it")
            tied[name] = layer
        return tied

    def _turned(self, layer: nn.Module) -> nn.Module:
        kind, dim = KINDS[type(layer)], self._dim_for(layer)
        new = kind.ours.__new__(kind.ours)
        vars(new).update(vars(layer))  # hooks, training mode and whatever was set on it
        vars(new).update(dim=dim, group=self.group, shards=kind.shards(layer, dim, self.group), _parameters={})
        for name, param in layer._parameters.items():
            adopt(new, name, None if param is None else self._part(param, vars(new)["shards"][name]))
        return new

    def _dim_for(self, layer: nn.Module) -> int | None:
        """The same cut of a tied weight, in the words of the other kind: an embedding's rows are a head's outputs."""
        if type(layer) is self.kind or self.dim is None:
            return self.dim
        return 1 if self.dim == 0 else 0

    @torch.no_grad()
    def _part(self, whole: nn.Parameter, shard: Shard | None) -> nn.Parameter:
        if id(whole) in self.parts:
            return self.parts[id(whole)][1]
        part = whole
        if self.dim is not None and not whole.is_meta:
            agreed = agree_(whole.detach().contiguous(), self.group)
            if not whole.is_contiguous():
                whole.copy_(agreed)
        if shard is not None and shard.group.size > 1:
            part = nn.Parameter(shard.of(whole.detach()).clone(memory_format=torch.contiguous_format), whole.requires_grad)
            vars(part).update(vars(whole))
        self.parts[id(whole)] = (whole, part)
        return part


def _column(dim: int | None) -> int | None:
    return 1 if dim == -1 else dim


def _is_usual(layer: nn.Module) -> bool:
    """Whether it computes with parameters of its own, as torch's layer does: weight_norm and a forward set on it do not."""
    own = layer._parameters
    return "weight" in own and set(own) <= {"weight", "bias"} and "forward" not in vars(layer)


def _replace(parent: nn.Module, attribute: str, layer: nn.Module) -> None:
    parent._modules[attribute] = layer
    if isinstance(parent, nn.TransformerEncoderLayer):
        parent.activation_relu_or_gelu = 0  # else evaluation takes the kernel that reads the weights by itself
